package cli

import (
	"context"
	"time"
)

// lookAgain is the pause between two looks at what became of a wish.
const lookAgain = 200 * time.Millisecond

// Await looks, every lookAgain, until look knows or fails, ctx ends, or patience is used up, which is no error: the
// caller shows what was seen last.
func Await(ctx context.Context, patience time.Duration, look func() (known bool, err error)) error {
	end := time.After(patience)
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if known, err := look(); known || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return nil
		case <-tick.C:
		}
	}
}
