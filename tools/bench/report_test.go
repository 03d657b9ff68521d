package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func resultOf(name string, rates ...float64) result {
	r := result{Name: name}
	for _, rate := range rates {
		cpu := map[string]float64{"client": 1}
		r.Samples = append(r.Samples, sample{Items: 1000, Seconds: 1000 / rate, Rate: rate, CPU: cpu})
	}
	return r
}

func TestRatiosAreTakenRoundByRound(t *testing.T) {
	t.Parallel()
	found, missing := ratios([]result{resultOf("tranche", 100, 50, 300), resultOf("floor", 100, 25, 100)})
	want := []ratio{{Of: "tranche / floor", Median: 2, Low: 1, High: 3, Goal: 1}}
	if !slices.Equal(found, want) {
		t.Errorf("ratios = %v, want %v", found, want)
	}
	if want := []string{"tranche / floor-raw", "tranche / river", "flow / 3 runs of tranche", "gather / floor-gather"}; !slices.Equal(missing, want) {
		t.Errorf("missing = %q, want %q", missing, want)
	}
}

func reportOf(t *testing.T, format string) string {
	t.Helper()
	r := report{
		Rounds: 1, Keys: "ordered", Results: []result{resultOf("tranche", 123_456)}, Missing: []string{"tranche / floor"},
		Latency: &latency{Singles: 200, Single: percentiles{P50: 12_340 * time.Microsecond}},
	}
	var text strings.Builder
	if err := r.write(&text, format); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func TestReportAsMarkdown(t *testing.T) {
	t.Parallel()
	text := reportOf(t, formatMarkdown)
	for _, line := range []string{
		"| contestant | items | items/s, median | min–max | seconds, median | of it intake |",
		"| tranche | 1,000 | 123,456 | 123,456–123,456 | 0.01 | – |",
		"| 1 item: start to completion event | 200 | 12.3 | 0.0 | 0.0 |",
		"- Not measured in this run: tranche / floor.",
	} {
		if !slices.Contains(strings.Split(text, "\n"), line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	if strings.Contains(text, "round by round") {
		t.Errorf("a table of ratios where there are none:\n%s", text)
	}
}

func TestReportAsText(t *testing.T) {
	t.Parallel()
	if text := reportOf(t, formatText); !strings.Contains(text, "tranche     1,000  123,456") {
		t.Errorf("the columns are not aligned:\n%s", text)
	}
}

func TestReportAsJSON(t *testing.T) {
	t.Parallel()
	var back report
	if err := json.Unmarshal([]byte(reportOf(t, formatJSON)), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Results) != 1 || back.Results[0].Samples[0].Rate != 123_456 || back.Latency.Singles != 200 {
		t.Errorf("read back %+v", back)
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567.4: "1,234,567"} {
		if got := thousands(v); got != want {
			t.Errorf("thousands(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestSpreadOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []float64
		want   spread
	}{
		"one":  {[]float64{7}, spread{7, 7, 7}},
		"odd":  {[]float64{9, 1, 4}, spread{4, 1, 9}},
		"even": {[]float64{4, 1, 9, 2}, spread{3, 1, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := spreadOf(c.values); got != c.want {
				t.Errorf("spreadOf(%v) = %v, want %v", c.values, got, c.want)
			}
		})
	}
}

func TestSpreadOfLeavesItsInputAlone(t *testing.T) {
	t.Parallel()
	values := []float64{3, 1, 2}
	spreadOf(values)
	if values[0] != 3 || values[1] != 1 || values[2] != 2 {
		t.Errorf("the input is now %v", values)
	}
}

func TestPercentilesOf(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for name, c := range map[string]struct {
		times []time.Duration
		want  percentiles
	}{
		"one":     {[]time.Duration{5}, percentiles{5, 5, 5}},
		"two":     {[]time.Duration{9, 5}, percentiles{5, 9, 9}},
		"hundred": {hundred, percentiles{50, 99, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := percentilesOf(c.times); got != c.want {
				t.Errorf("percentilesOf = %v, want %v", got, c.want)
			}
		})
	}
}
