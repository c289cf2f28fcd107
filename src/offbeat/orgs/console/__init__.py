"""The steward's console: one page over one party's daemon, for the person who answers for the data.

overview.py      what there is to know, asked of the daemon and read from the owner's own folder
policy_pages.py  the policy in sentences and as a form, and the difference that a change would make
page.py          the page and its parts; a run's model card and audit as pages
app.py           the routes: the page, its parts as they change, decisions, stops, scores
"""
