package kernel

import (
	"maps"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
)

// Members of an operation's metadata.
const (
	MetaRole     = "role"     // an access.Role: who may. Without it nobody may
	MetaHeavy    = "heavy"    // true: few at once
	metaHeavyIf  = "heavy if" // a string: few at once of those in which this parameter is true
	metaBroad    = "broad"    // true: few at once, and the others wait for a while
	metaBroadIf  = "broad if" // []string: so when one of these parameters is there
	metaHeld     = "held"     // true: its answer may be large and is held as a whole; few at once, and the others wait
	metaCredent  = "credent"  // true: it is about who may do what, and goes on while all else stands still
	metaBulk     = "bulk"     // an int64: its body, of so many bytes, is held as a whole, and few are at once
	metaStreamed = "streamed" // true: its body is read as it comes, and may take as long as it keeps coming
	metaUnstored = "unstored" // true: its answer holds a secret, and is kept nowhere
)

// ByAnyone says that an operation is open to those who have not logged in.
func ByAnyone(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.None) }

// byViewer says that an operation only looks.
func byViewer(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.Viewer) }

// ByOperator says that an operation changes what operators may change.
func ByOperator(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.Operator) }

// ByAdmin says that an operation is for admins.
func ByAdmin(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.Admin) }

// Heavy says that an operation reads a whole run or more: only a few of them are done at once.
func Heavy(op huma.Operation) huma.Operation { return noted(op, MetaHeavy, true) }

// HeavyIf says that an operation is heavy when a parameter of it is true, and broad otherwise.
func HeavyIf(parameter string, op huma.Operation) huma.Operation {
	return noted(Broad(op), metaHeavyIf, parameter)
}

// Broad says that an operation reads much of a run at once: only a few of them are done at once.
func Broad(op huma.Operation) huma.Operation { return noted(op, metaBroad, true) }

// BroadIf says that an operation is broad when one of some parameters is there: it looks through everything then.
func BroadIf(op huma.Operation, parameters ...string) huma.Operation {
	return noted(op, metaBroadIf, parameters)
}

// Held says that the answer of an operation may be large, and is held as a whole for as long as its reader takes: only
// a few of them are under way at once.
func Held(op huma.Operation) huma.Operation { return noted(op, metaHeld, true) }

// AboutCredentials says that an operation has connections of its own to the database.
func AboutCredentials(op huma.Operation) huma.Operation { return noted(op, metaCredent, true) }

// Streamed says that the body of an operation is read as it comes. Others have to be there within a time.
func Streamed(op huma.Operation) huma.Operation { return noted(op, metaStreamed, true) }

// Unstored says that the answer of an operation holds a secret.
func Unstored(op huma.Operation) huma.Operation { return noted(op, metaUnstored, true) }

// IsSet reports whether an operation was marked so.
func IsSet(op *huma.Operation, name string) bool {
	set, _ := op.Metadata[name].(bool)
	return set
}

func noted(op huma.Operation, name string, value any) huma.Operation {
	op.Metadata = maps.Clone(op.Metadata)
	if op.Metadata == nil {
		op.Metadata = map[string]any{}
	}
	op.Metadata[name] = value
	return op
}
