package browsertest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// evil runs when it is taken for HTML, a script, a template or an address, and spoils lines when it is shown as it is.
const evil = `<img src=x onerror="window.__ran=1">"><script>window.__ran=1</script>` +
	"\u202egnp.exe\u202c \x1b[31mred\x1b[0m ${window.__ran=1} {{constructor.constructor('window.__ran=1')()}}"

// start is the first characters of a text.
func start(text string, n int) string {
	if all := []rune(text); len(all) > n {
		return string(all[:n])
	}
	return text
}

// villains is what hostile has made.
type villains struct {
	run workqueue.RunID
	key string
}

// hostile fills a stack with texts that want to harm whoever looks at them, wherever somebody else can put a text.
func (s *stack) hostile() villains {
	s.Helper()
	long := strings.Repeat("W", 400)
	keys := []string{evil, `javascript:window.__ran=1`, long, "..", "a/b?c#d", `"quoted"`, "Ünïcödé 数据 \U0001F4A9"}
	service := &bills{codes: func(key string) (string, string) {
		switch key {
		case evil, "..":
			return "bad_" + strings.Repeat("x", 40), evil
		case long:
			return "long", strings.Repeat("M", 2000)
		}
		return "", ""
	}}
	s.listen(service)
	payload, err := json.Marshal(map[string]any{"name": evil, evil: []any{evil, long, nil, 1e300}})
	if err != nil {
		s.Fatal(err)
	}
	req := request(evil, "statement")
	req.Source, req.CreatedBy = start(evil, 60)+".csv", start(evil, 80)
	req.Params = map[string]string{"title": evil}
	run := s.load(req, 300, func(i int) (string, string) {
		if i < len(keys) {
			return keys[i], string(payload)
		}
		return plainItem(i)
	})
	s.ended(run)
	s.load(request(start(long, 200), "nobody"), 50, plainItem)

	for _, cause := range []string{"handler_error", "no_reply"} {
		letter := deadletter.DeadLetter{MsgID: uuid.NewString(), Endpoint: "statement", Cause: cause, Message: evil,
			Run:     &run,
			Service: start(evil, 100), Origin: start(evil, 90), Headers: map[string][]string{"Evil": {evil}}, Body: payload}
		if _, err := deadletter.New(s.store).Bury(s.Context(), letter); err != nil {
			s.Fatal(err)
		}
	}
	err = deadletter.New(s.store).Quarantine(s.Context(), deadletter.Quarantined{
		Reason: "json", Detail: evil, Subject: "tranche.reply." + start(evil, 30), Run: uuid.UUID(run),
		Headers: map[string][]string{"Evil": {evil}}, Body: payload})
	if err != nil {
		s.Fatal(err)
	}
	token := identity.NewToken{Name: start(evil, 90), Role: "viewer", Hash: [32]byte{1}}
	if _, err := identity.New(s.store).CreateToken(s.Context(), token, start(evil, 60)); err != nil {
		s.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO audit_log (actor, action, subject, detail, before, after)
			VALUES ($1, 'pause', $1, jsonb_build_object('reason', $1::text), jsonb_build_object($1::text, $1::text), '{}')`,
		`INSERT INTO node_session (id, host, pid, version, expires_at)
			VALUES (gen_random_uuid(), $1, 66, $1, tranche_now() - interval '1 minute')`,
	} {
		if _, err := s.pool.Exec(s.Context(), sql, fmt.Sprint(evil)); err != nil {
			s.Fatal(err)
		}
	}
	return villains{run: run, key: evil}
}

// hostileServices does the same to what other systems use: a batch of the tracker, whose id it returns, a collector
// and a schedule. Their names are held to letters; what they carry is not.
func (s *stack) hostileServices(secret string) (batch string) {
	s.Helper()
	const yaml = "application/yaml"
	post := func(path, kind string, body any) (answer map[string]any) {
		s.Helper()
		text, ok := body.(string)
		if !ok {
			raw, err := json.Marshal(body)
			if err != nil {
				s.Fatal(err)
			}
			text = string(raw)
		}
		req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+"/api/v1"+path,
			bytes.NewBufferString(text))
		if err != nil {
			s.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		req.Header.Set("Authorization", "Bearer "+secret)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			s.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= 300 {
			s.Fatalf("POST %s: %s %s %v", path, resp.Status, raw, err)
		}
		if err := json.Unmarshal(raw, &answer); err != nil {
			s.Fatalf("POST %s: %s: %v", path, raw, err)
		}
		return answer
	}
	const asJSON, note = "application/json", "# <img src=x onerror=window.__ran=1> ${window.__ran=1}\n"
	batch, _ = post("/trackers", asJSON, map[string]any{"owner": start(evil, 60), "key": start(evil, 50)})["id"].(string)
	post("/trackers/"+batch+"/groups", asJSON, map[string]any{"items": 20_000})
	post("/trackers/"+batch+"/ack", asJSON, map[string]any{"ranges": []string{"0:1-5", "1:7-4000"}, "code": "<b>bad</b>"})
	post("/collectors", yaml, note+"name: hostile\nendpoint: nobody\nmin_size: 2\n")
	post("/collectors/hostile/ops", asJSON, map[string]any{"ops": []map[string]any{
		{"id": start(evil, 60), "key": start(evil, 50), "payload": evil},
		{"id": strings.Repeat("W", 200), "key": start(evil, 50), "payload": 1},
	}})
	post("/alerts", yaml, note+"name: hostile\nwhen: {runs: [paused], health: info}\n"+
		"plans: [\"<b>\"]\nto: {command: page}\n")
	post("/alerts/hostile/test", asJSON, map[string]any{})
	post("/schedules", yaml, note+"name: hostile\ncron: 0 3 * * *\nplan: nothing\nitems:\n  file: \"<b>.csv\"\n")
	return batch
}
