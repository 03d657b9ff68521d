package stream

import (
	"context"
	"sync"
	"time"
)

// KnownFor is how long an answer about the consumer is taken for true. It bounds both the questions asked (ten a second
// and endpoint, however many chunks there are) and the time in which a consumer made anew can go unnoticed.
const KnownFor = 100 * time.Millisecond

// AckTimeout is how long an acknowledgement or an answer of JetStream is waited for. It is short because trying again
// under the same id is harmless, and a publish can be lost with a connection.
const AckTimeout = 2 * time.Second

// Incarnation knows when the consumer that a server has now was made. A stream or consumer that is deleted and made
// anew counts its messages from 1 again, while the server takes an acknowledgement by the sequence alone: one for an
// old message would remove a new one that nobody has seen to, and a sign of life would keep it from being delivered
// again. So each delivery remembers the incarnation that it came from, and only the one of now is ever spoken to.
//
// It is safe for concurrent use.
type Incarnation struct {
	Ask func(context.Context) (time.Time, error) // when the consumer was made; set before the first use

	Mu    sync.Mutex
	Asked time.Time // when the last question was put
	made  time.Time // its answer; zero when there was none
}

// Current returns when the consumer was made, as of at most knownFor ago. It is zero when the server does not say; then
// nothing may be acknowledged: what is not is delivered again, which does no harm.
func (i *Incarnation) Current() time.Time {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	if time.Since(i.Asked) < KnownFor {
		return i.made
	}
	// Requests are settled after every context of the service has ended, too.
	ctx, cancel := context.WithTimeout(context.Background(), AckTimeout)
	defer cancel()
	asked := time.Now()
	made, err := i.Ask(ctx)
	if err != nil {
		// Those who waited for this answer do not each wait as long again.
		asked, made = time.Now(), time.Time{}
	}
	i.Asked, i.made = asked, made
	return made
}

// Learn takes an answer that came otherwise, to a question put at asked.
func (i *Incarnation) Learn(asked, made time.Time) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	i.Asked, i.made = asked, made
}
