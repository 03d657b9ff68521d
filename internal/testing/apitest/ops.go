package apitest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// Told wants these numbers of shown and muted conditions about dead letters.
func (b *Bench) Told(open, aside int) {
	b.Helper()
	text := Looked(b)
	var h api.Health
	if err := json.Unmarshal(text, &h); err != nil {
		b.Fatalf("%s: %v", text, err)
	}
	var found [2]int
	for i := range h.Conditions {
		if h.Conditions[i].Kind == "dead_letters" {
			found[0]++
		}
	}
	for i := range h.Muted {
		if h.Muted[i].Kind == "dead_letters" {
			found[1]++
		}
	}
	if found != [2]int{open, aside} {
		b.Errorf("%v are told and muted; want %d and %d: %s", found, open, aside, text)
	}
}

func (b *Bench) AddLetter(endpoint string, letter deadletter.DeadLetter) workqueue.LetterID {
	b.Helper()
	letter.MsgID, letter.Endpoint = uuid.NewString(), endpoint
	letter.Cause = cmp.Or(letter.Cause, "handler_error")
	if isNew, err := deadletter.New(b.Store).Add(b.Context(), letter); err != nil || !isNew {
		b.Fatal(isNew, err)
	}
	page, err := deadletter.New(b.Store).DeadLetters(b.Context(), deadletter.DeadFilter{Limit: 1})
	if err != nil || len(page.Letters) != 1 {
		b.Fatal(page, err)
	}
	return page.Letters[0].ID
}

// Stray quarantines a message, and returns its id.
func (b *Bench) Stray(q deadletter.Quarantined) int64 {
	b.Helper()
	testenv.NoError(b, deadletter.New(b.Store).Quarantine(b.Context(), q))
	page, err := deadletter.New(b.Store).QuarantinedMessages(b.Context(), deadletter.QuarantineFilter{Limit: 1})
	if err != nil || len(page.Messages) != 1 {
		b.Fatal(page, err)
	}
	return page.Messages[0].ID
}

// AckTwice acknowledges the last seven items, each twice concurrently: only one call reports the end.
func (b *Bench) AckTwice(batch string) {
	b.Helper()
	var told, newly atomic.Int64
	var all sync.WaitGroup
	for i := range 14 {
		all.Go(func() {
			var acked trackerclient.BatchesAcked
			code, text, err := b.TryAsk(http.MethodPost, api.Prefix+"/trackers/ack",
				strings.NewReader(fmt.Sprintf(`{"ids":["%s:1:%d"]}`, batch, 1+i/2)), "Content-Type", "application/json")
			if err != nil || code != http.StatusOK || json.Unmarshal(text, &acked) != nil {
				b.Errorf("%d %s, %v", code, text, err)
			}
			newly.Add(acked.Newly)
			told.Add(int64(len(acked.CompletedBatches)))
		})
	}
	all.Wait()
	if told.Load() != 1 || newly.Load() != 7 {
		b.Errorf("%d calls were told of the end, and %d items were new", told.Load(), newly.Load())
	}
}

func (b *Bench) Collect(text string) (out workqueue.AppliedDocument) {
	b.Helper()
	b.Post("/collectors?name=named", text, &out)
	return out
}

// Park parks the operations of a key, as after their last attempt.
func (b *Bench) Park(collector, key, code string) {
	b.Helper()
	for _, sql := range []string{
		`UPDATE collector_op SET parked_at = tranche_now(), attempts = 5, error_code = $3, error_message = 'no' ||
		chr(27) || '[2J', not_before = tranche_now(), failed_first = tranche_now(), failed_last = tranche_now()
		WHERE key = $2 AND collector = (SELECT id FROM collector WHERE name = $1)`,
		`UPDATE collector_key SET parked = untried, untried = 0, oldest_at = NULL, due_at = NULL
		WHERE key = $2 AND $3 <> '' AND collector = (SELECT id FROM collector WHERE name = $1)`,
	} {
		if tag, err := b.Pool.Exec(b.Context(), sql, collector, key, code); err != nil || tag.RowsAffected() == 0 {
			b.Fatal(tag, err)
		}
	}
}

// Parking makes a collector of that name with two parked operations, of keys a and b.
func (b *Bench) Parking() {
	b.Helper()
	b.Collect("name: parking\nendpoint: echo\n")
	var added api.AddedOperations
	for _, key := range []string{"a", "b"} {
		b.Post("/collectors/parking/ops", `{"id":"`+key+`1","key":"`+key+`","payload":1}`, &added)
		b.Park("parking", key, "GONE")
	}
}

const YearEnd = `name: year-end
priority: 7
max_failed: 1.0%
canary: 2
steps:
- name: make
  endpoint: echo
  chunk: 100 # a query each
  rate: 1000
  retry_codes: [BUSY]
`

const Nightly = "cron: 30 2 * * *\nzone: Europe/Berlin\nplan: year-end\nparams: {year: \"{due.year}\"}\n" +
	"items: {file: \"{due.date}/customers.csv\"}\n"
