package migrations_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const letter = `INSERT INTO dead_letter (id, msg_id, endpoint, cause, body) VALUES (gen_random_uuid(), 'm', 'e', 'c', `

func TestDeadLettersGuardTheirStates(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	for name, c := range map[string]struct {
		statements []string
		refusedBy  string
	}{
		"letter":           {[]string{letter + `'b')`}, ""},
		"letter, bodiless": {[]string{letter + `NULL)`, `UPDATE dead_letter SET state = 'dropped'`}, ""},
		"letter, twice":    {[]string{letter + `'b')`, letter + `'b')`}, "dead_letter_msg_id_key"},
		"letter, of no known state": {[]string{letter + `'b')`, `UPDATE dead_letter SET state = 'lost'`},
			"dead_letter_state_check"},
		"letter, too large": {[]string{letter + `convert_to(repeat('x', 16777217), 'utf8'))`},
			"dead_letter_body_check"},
		"letter, requeued": {[]string{letter + `'b')`, `UPDATE dead_letter SET state = 'requeued',
			sent_at = tranche_now()`}, ""},
		"letter, requeued without a body": {[]string{letter + `NULL)`, `UPDATE dead_letter SET state = 'requeued'`},
			"dead_letter_whole"},
		"letter, sent while it waits": {[]string{letter + `'b')`, `UPDATE dead_letter SET sent_at = tranche_now()`},
			"dead_letter_sent"},
		"setting": {[]string{`INSERT INTO endpoint_setting (endpoint, concurrency) VALUES ('e', 1024)`}, ""},
		"setting, out of range": {[]string{`INSERT INTO endpoint_setting (endpoint, concurrency) VALUES ('e', 1025)`},
			"endpoint_setting_concurrency_check"},
		"streams of the version before": {[]string{
			`INSERT INTO stream_epoch (name, epoch, work_created, reply_created)
				VALUES ('streams', 1, tranche_now(), tranche_now())`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := inRollback(t.Context(), pool, c.statements)
			var refused *pgconn.PgError
			switch {
			case c.refusedBy == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refusedBy != "" && (!errors.As(err, &refused) || refused.ConstraintName != c.refusedBy):
				t.Errorf("got %v, want it refused by %s", err, c.refusedBy)
			}
		})
	}
}
