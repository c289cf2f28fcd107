"""The steward's console: one page over one party's daemon, for the person who answers for the data.

overview.py      what there is to know, asked of the daemon and read from the owner's own folder
policy_words.py  the policy in sentences
page.py          the page and its parts
app.py           the routes: the page, its parts as they change, decisions, stops, scores
"""
