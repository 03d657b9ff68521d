package gather

// SQL is a query in another database.
type SQL struct{}

// source is the name of the database.
func (q *SQL) source() string { return "" }
