package workqueue_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

func TestAdaptive(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]workqueue.Adaptive{
		`500`: {Value: 500}, `"500"`: {Value: 500}, `"auto"`: {Auto: true}, `-1`: {Value: -1},
	} {
		var got workqueue.Adaptive
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		back, err := json.Marshal(got)
		var again workqueue.Adaptive
		if err != nil || json.Unmarshal(back, &again) != nil || again != want {
			t.Errorf("%s comes back as %s, %v", text, back, err)
		}
	}
	for _, text := range []string{`"Auto"`, `""`, `1.5`, `"0x1"`, `true`, `[]`, `" 5"`, `"+5"`, `1e3`} {
		if err := json.Unmarshal([]byte(text), &workqueue.Adaptive{}); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]workqueue.Bytes{
		"0": 0, "1000": 1000, "512KiB": 512 << 10, "512 KiB": 512 << 10, "2MiB": 2 << 20, "1GiB": 1 << 30,
	} {
		var got, again workqueue.Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
		if err := again.UnmarshalText([]byte(got.String())); err != nil || again != want {
			t.Errorf("%s comes back from %s as %d, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "KiB", "-1", "1KB", "1kib", "1.5MiB", "99999999999GiB", "1 K", "0x1", "1  KiB"} {
		if err := new(workqueue.Bytes).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestParseMaxFailed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "none": "", "0": "0", "500": "500", "1%": "1%", "0%": "0%", "100%": "100%", "0.50%": "0.5%",
		"100.000%": "100%", "12.345%": "12.345%", "0.0001%": "0.0001%",
	} {
		got, err := workqueue.ParseMaxFailed(text)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
		if again, err := workqueue.ParseMaxFailed(got); err != nil || again != got {
			t.Errorf("%q is not canonical: %q, %v", got, again, err)
		}
	}
	for _, text := range []string{
		"-1", "01", "1.5", "%", "101%", "100.1%", "1.%", ".5%", "-1%", "1e1%", "0.12345%", "1 %", "1%%", "9999999999", "٣%",
	} {
		if got, err := workqueue.ParseMaxFailed(text); err == nil {
			t.Errorf("%q is taken as %q", text, got)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	var d workqueue.Duration
	if err := json.Unmarshal([]byte(`"1m30s"`), &d); err != nil || time.Duration(d) != 90*time.Second {
		t.Errorf("got %v, %v", d, err)
	}
	for _, text := range []string{`90`, `"soon"`, `"5"`} {
		if err := json.Unmarshal([]byte(text), &d); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

func FuzzValues(f *testing.F) {
	for _, text := range []string{"auto", "500", "512KiB", "1%", "0.5%", "none", "1h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var a, a2 workqueue.Adaptive
		if a.UnmarshalText([]byte(text)) == nil && (a2.UnmarshalText([]byte(a.String())) != nil || a2 != a) {
			t.Errorf("%q is %+v, then %+v", text, a, a2)
		}
		var n, n2 workqueue.Bytes
		if n.UnmarshalText([]byte(text)) == nil && (n < 0 || n2.UnmarshalText([]byte(n.String())) != nil || n2 != n) {
			t.Errorf("%q is %d, then %d", text, n, n2)
		}
		if m, err := workqueue.ParseMaxFailed(text); err == nil {
			if m2, err := workqueue.ParseMaxFailed(m); err != nil || m2 != m {
				t.Errorf("%q is %q, then %q, %v", text, m, m2, err)
			}
		}
	})
}
