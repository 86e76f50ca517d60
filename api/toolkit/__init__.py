"""What commands share: their declaration, tables, charts, pages, files and figures as text."""
