package workqueue

import (
	"github.com/tranchehq/tranche/workqueue/order"
)

// CodeStopped is the error code of items that nobody has tried, because one of the same line failed before them.
const CodeStopped = "ORDER_STOPPED"

// RunOrder puts the items of a run in lines: those of the same value are worked on one after the other in the order in
// which they came, and the next one begins when every step has come to its end with the one before. Lines do not wait
// for each other.
//
// The item of a line that is worked on is its head; the others are held back in the planes, like those behind a canary.
// Whoever settles the head, over all steps, makes the next one ready in the same transaction. The row of a line in
// work_lane is its lock.
type RunOrder struct {
	Rule order.Rule
	Stop bool // what follows an item that failed ends with CodeStopped, and is not tried
}
