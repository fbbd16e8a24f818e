"""The faces of results: tables in a terminal, a page in a browser, all made of JSON documents."""
