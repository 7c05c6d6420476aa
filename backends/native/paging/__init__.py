"""The paged memory's account: which sequence has which pages, what they share, what is kept. Pure
Python; the pages themselves are whoever implements `store.PageStore`.
"""
