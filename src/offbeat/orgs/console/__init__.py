"""The steward's console: one page over one party's daemon, for the person who answers for the data.

overview.py      what there is to know, asked of the daemon and read from the owner's own folder
policy_words.py  the policy in sentences
policy_form.py   the policy as a form, and the difference that it would make; policy_desk.py: its steps
papers.py        a run's model card and audit as pages
page.py          the page and its parts
app.py           the routes: the page, its parts as they change, decisions, stops, scores
"""
