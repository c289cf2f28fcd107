"""The page on protocols is what the tables draw."""

import protocol_page


def test_the_page_is_drawn_from_the_tables():
    assert protocol_page.PAGE.read_text(encoding="utf-8") == protocol_page.page(), "make protocols"


def test_a_picture_has_an_arrow_for_every_line_from_sender_to_receiver():
    for protocol in protocol_page.PROTOCOLS.values():
        head, *lines = protocol_page.picture(protocol).split("\n")
        assert head.split("  ")[0] == "" and len(lines) == len(protocol)
        for line, shown in zip(protocol, lines, strict=True):
            ends = [head.index(role) + len(role) // 2 for role in (line.sender, line.to)]
            assert f" {line.body.__name__} " in shown
            right = ends[1] > ends[0]
            assert shown[ends[0]] == ("├" if right or ends[0] == ends[1] else "┤")
            if ends[0] != ends[1]:
                assert shown[ends[1] - 1 if right else ends[1] + 1] == ("▶" if right else "◀")
