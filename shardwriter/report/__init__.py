"""Results for people: tables in a terminal and a page in a browser, made of JSON documents."""
