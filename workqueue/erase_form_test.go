package workqueue_test

import "testing"

// The key of an item is erased from texts in each form that has no other sign of an escape, and from no other word.
func TestErasedText(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for said, want := range map[string]string{
		"GET /q?name=Zoe+Muster&x=1": "GET /q?name=MARK&x=1",
		"of Zoe Muster":              "of MARK",
		`Zoe\u0020Muster`:            "MARK",
		"Zoe%20Muster":               "MARK",
		"Zoe+Musterfrau":             "Zoe+Musterfrau",
	} {
		var text, json string
		err := b.Pool.QueryRow(t.Context(), `SELECT erased_text($1, $2, 'MARK'),
			erased_json(to_jsonb($1::text), $2, 'MARK') #>> '{}'`, said, "Zoe Muster").Scan(&text, &json)
		if err != nil || text != want || json != want {
			t.Errorf("%s became %q, in JSON %q (%v); want %q", said, text, json, err, want)
		}
	}
}
