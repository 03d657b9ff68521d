package admin

import "testing"

func TestLimitsOfEndpointsAreRead(t *testing.T) {
	t.Parallel()
	var budget requestBudget
	var items itemRate
	var limit chunkCap
	for text, ok := range map[string]bool{"1": true, "10000": true, "none": true, "0": false, "10001": false, "x": false} {
		if err := budget.UnmarshalText([]byte(text)); (err == nil) != ok {
			t.Errorf("--max-in-flight %s: %v", text, err)
		}
	}
	for text, ok := range map[string]bool{"0.5": true, "none": true, "0": false, "-1": false, "NaN": false, "Inf": false} {
		if err := items.UnmarshalText([]byte(text)); (err == nil) != ok {
			t.Errorf("--rate %s: %v", text, err)
		}
	}
	if limit.UnmarshalText([]byte("0")) != nil || limit.UnmarshalText([]byte("5")) == nil {
		t.Error("--chunk-cap takes 0 and nothing else")
	}
	var breaker breakerState
	if breaker.UnmarshalText([]byte("closed")) != nil || breaker.UnmarshalText([]byte("open")) == nil {
		t.Error("--breaker takes closed and nothing else")
	}
}
