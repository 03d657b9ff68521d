package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
)

func listChecks() []check {
	const section = "The request"
	return []check{
		{"list", "a list of n items gets n slots", section, 0, checkList},
		{"ordinals", "ordinals with gaps, up to 2147483647", section, 0, checkOrdinals},
		{"keys", "keys with quotes, control characters and any script", section, 0, checkKeys},
		{"params", "parameters, in front of the items or behind them", section, 0, checkParams},
		{"unknown", "members and headers that nobody knows are ignored", section, 0, checkUnknown},
	}
}

func checkList(ctx context.Context, n *node) error {
	for _, count := range []int{1, 7, 300} {
		if err := n.wholly(ctx, n.sample(count)); err != nil {
			return err
		}
	}
	return nil
}

// wholly asks and returns an error unless each item gets a slot.
func (n *node) wholly(ctx context.Context, r *request) error {
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	return a.exactly(r)
}

func checkOrdinals(ctx context.Context, n *node) error {
	var items []item
	for at, ordinal := range []int{0, 3, 8191, 8192, 1 << 20, math.MaxInt32} {
		items = append(items, n.item(at))
		items[at].ordinal = ordinal
	}
	return n.wholly(ctx, newRequest(items...))
}

func checkKeys(ctx context.Context, n *node) error {
	keys := []string{
		`a "quoted" key`, `back\slash`, "ключ 鍵 🗝 é", "line\nfeed, tab\tand bell\a", "", "</script>&'",
		strings.Repeat("long", 100),
	}
	var items []item
	for ordinal, key := range keys {
		items = append(items, n.item(ordinal))
		items[ordinal].key = key
		if n.contract {
			items[ordinal].payload = json.RawMessage(`{"do":"info"}`)
		}
	}
	r := newRequest(items...)
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	if err := a.exactly(r); err != nil || !n.contract {
		return err
	}
	for ordinal, key := range keys {
		info, err := readInfo(a, ordinal)
		if err != nil {
			return err
		}
		if info.Key != key {
			return differs(fmt.Sprintf("key %q in the handler", key), "%q", info.Key)
		}
	}
	return nil
}

// itemInfo is the result of the order "info".
type itemInfo struct {
	Key            string            `json:"key"`
	Params         map[string]string `json:"params"`
	IdempotencyKey string            `json:"idempotency_key"`
}

func readInfo(a *answer, ordinal int) (itemInfo, error) {
	var info itemInfo
	s, err := a.slot(ordinal)
	if err != nil {
		return info, err
	}
	if json.Unmarshal(s.D, &info) != nil {
		return info, differs(`a result with "key", "params" and "idempotency_key"`, "%s", s)
	}
	return info, nil
}

func checkParams(ctx context.Context, n *node) error {
	params := map[string]string{"year": "2026", "Straße": `"ß" \ 街`, "empty": ""}
	written, err := json.Marshal(params)
	if err != nil {
		return err
	}
	for _, form := range []string{`{"params":%[1]s,"items":%[2]s}`, `{"items":%[2]s,"params":%[1]s}`} {
		items := n.sample(2).items
		if n.contract {
			items[0].payload = json.RawMessage(`{"do":"info"}`)
		}
		r := newRequest(items...)
		r.body = fmt.Appendf(nil, form, written, writeItems(items))
		a, err := n.answered(ctx, r)
		if err != nil {
			return err
		}
		if err := a.exactly(r); err != nil {
			return err
		}
		if err := checkInfo(n, r, a, params); err != nil {
			return err
		}
	}
	return nil
}

// checkInfo compares what the handler was told with what was sent.
func checkInfo(n *node, r *request, a *answer, params map[string]string) error {
	if !n.contract {
		return nil
	}
	info, err := readInfo(a, 0)
	if err != nil {
		return err
	}
	if !maps.Equal(info.Params, params) {
		return differs(fmt.Sprintf("parameters %q in the handler", params), "%q", info.Params)
	}
	want := r.header.Get("Tranche-Run") + "/0/0/1"
	if info.IdempotencyKey != want {
		return differs("idempotency key run/step/ordinal/generation, "+want, "%q", info.IdempotencyKey)
	}
	return nil
}

func checkUnknown(ctx context.Context, n *node) error {
	r := n.sample(2)
	const known, newer = `{"items":[{`, `{"later":{"deep":[{"items":[]}]},"items":[{"new":[1,2],`
	r.body = bytes.Replace(r.body, []byte(known), []byte(newer), 1)
	r.body = append(bytes.TrimSuffix(r.body, []byte("}")), `,"trailer":null}`...)
	for name, value := range map[string]string{
		"Tranche-Future": "yes", "X-Other": "1", "Nats-TTL": "60s", "Tranche-Origin": "a test",
	} {
		r.header.Set(name, value)
	}
	return n.wholly(ctx, r)
}

// sameJSON compares two values of JSON.
func sameJSON(a, b []byte) bool {
	var left, right any
	return json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil && reflect.DeepEqual(left, right)
}
