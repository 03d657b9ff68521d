package intake

import (
	"cmp"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Object checks a payload that came alone, as a row of NDJSON without a key would be, and returns it as it is stored:
// one compact JSON object. Of the limits those of a row hold, and so does
// the schema.
func Object(text []byte, cfg Config) ([]byte, error) {
	cfg.MaxFieldBytes = cmp.Or(cfg.MaxFieldBytes, DefaultMaxFieldBytes)
	n := newNDJSON(&lineReader{number: 1}, cfg)
	n.keyless = true
	line := jsontext.Value(text)
	if err := line.Compact(); err != nil {
		return nil, n.explain(err)
	}
	if err := n.checkBytes(line); err != nil {
		return nil, err
	}
	if _, err := n.check(line); err != nil {
		return nil, err
	}
	if cfg.Schema != nil {
		if faults := cfg.Schema.Check(line); faults != nil {
			return nil, &row.InputError{Reason: describe(faults)}
		}
	}
	return line, nil
}
