package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// bench has, beside what all rooms' tests do, what those of this package do.
type bench struct{ *storetest.Bench }

func setup(t *testing.T) *bench {
	t.Helper()
	return &bench{storetest.Setup(t)}
}

// emptying deletes what a case has written. What stays is there from the beginning.
const emptying = `
DO $$ DECLARE t regclass; BEGIN
    FOR t IN SELECT oid FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
        AND relnamespace = 'public'::regnamespace AND relname NOT IN ('audit_expiry', 'audit_head', 'database_mark',
        'namespace', 'retention', 'schema_object', 'tranche_migration') LOOP
        EXECUTE 'DELETE FROM ' || t;
    END LOOP;
    UPDATE namespace SET max_in_flight = NULL;
END $$`

// subtest runs a case alone on this database, emptied: another one for each case would cost more than most of them.
func (b *bench) subtest(name string, f func(b *bench)) {
	b.Run(name, func(t *testing.T) {
		testenv.Rewrite(t, b.Pool, emptying)
		b := &bench{&storetest.Bench{T: t, Pool: b.Pool, Store: b.Store}}
		b.Session = b.Open()
		f(b)
	})
}

func TestMain(m *testing.M) { testenv.Main(m) }
