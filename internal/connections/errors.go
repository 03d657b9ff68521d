package connections

import "fmt"

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
