package browsertest_test

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
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
		letter := workqueue.DeadLetter{MsgID: uuid.NewString(), Endpoint: "statement", Cause: cause, Message: evil, Run: &run,
			Service: start(evil, 100), Origin: start(evil, 90), Headers: map[string][]string{"Evil": {evil}}, Body: payload}
		if _, err := s.store.Bury(s.Context(), letter); err != nil {
			s.Fatal(err)
		}
	}
	err = s.store.Quarantine(s.Context(), workqueue.Quarantined{
		Reason: "json", Detail: evil, Subject: "tranche.reply." + start(evil, 30), Run: uuid.UUID(run),
		Headers: map[string][]string{"Evil": {evil}}, Body: payload})
	if err != nil {
		s.Fatal(err)
	}
	token := workqueue.NewToken{Name: start(evil, 90), Role: "viewer", Hash: [32]byte{1}}
	if _, err := s.store.CreateToken(s.Context(), token, start(evil, 60)); err != nil {
		s.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO audit_log (actor, action, subject, detail, before, after)
			VALUES ($1, 'pause', $1, jsonb_build_object('reason', $1::text), jsonb_build_object($1::text, $1::text), '{}')`,
		`INSERT INTO node_session (id, host, pid, version, expires_at)
			VALUES (gen_random_uuid(), $1, 66, $1, clock_timestamp() - interval '1 minute')`,
	} {
		if _, err := s.pool.Exec(s.Context(), sql, fmt.Sprint(evil)); err != nil {
			s.Fatal(err)
		}
	}
	return villains{run: run, key: evil}
}
