package connections

import "fmt"

// Error is what is wrong with a file of connections.
type Error struct {
	File    string
	Line    int    // from 1; 0 when the file as a whole is at fault
	Field   string // like sources.ledger.dsn; empty when none is
	Problem string // what is wrong, and what is allowed; nothing of the value
}

func (e *Error) Error() string {
	place, field := e.File, ""
	if e.Line > 0 {
		place = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	if e.Field != "" {
		field = e.Field + ": "
	}
	return fmt.Sprintf("connections %s: %s%s", place, field, e.Problem)
}

// UnknownError says that nothing of a name is configured.
type UnknownError struct {
	What  string // source, secret
	Name  string
	Known string // the names that there are
}

func (e *UnknownError) Error() string {
	known := "there are none"
	if e.Known != "" {
		known = "there are " + e.Known
	}
	return fmt.Sprintf("this node knows no %s %q; %s (serve --connections FILE says which)", e.What, e.Name, known)
}
