package pg

// Few reports whether rows of so many bytes are so few that the round trips of a COPY would be most of what they cost.
func Few(rows, bytes int) bool { return rows <= 256 && bytes <= 256<<10 }
