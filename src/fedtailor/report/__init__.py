"""From records to tables, figures and a page. Reads run folders and nothing else; `html.write_report` makes it all."""
