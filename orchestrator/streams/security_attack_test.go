package streams_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// marked stands in what attackers forge.
const marked = "forged-by-an-attacker"

// plantedState stands for the state of a suspended chunk.
const plantedState = "tranche.flow.statement.planted.0"

// ackOfOther reads in two ways: as an acknowledgement for accounts with domain and account in it, and as one for
// statement without.
const ackOfOther = "$JS.ACK.TRANCHE_WORK.statement.TRANCHE_WORK.accounts.1.1.1"

// attack is what someone does with the rights of a role, and how the harm shows.
type attack struct {
	name, role string
	do         func(*attacker)
	harmed     func(*attacker) bool
	// missed says that someone was faster, so that the attacker has to try again; nil where no one can be.
	missed func(*attacker) bool
	// noReply is an attack that permissions alone withstand, too.
	noReply bool
}

// attacker is a connection of a role, and a spy who sees everything in the account of the nodes.
type attacker struct {
	*guarded
	t       *testing.T
	nc      *nats.Conn
	all     jetstream.JetStream // the spy's
	created map[string]time.Time
	mu      sync.Mutex
	seen    []*nats.Msg
	taken   workqueue.RunID // a run whose work it means to take
	heard   *nats.Subscription
	request *nats.Msg // of that run
}

// spied adds someone to the account of the nodes who may do everything there.
func spied(config string) string {
	const spy = "{ user: spy, password: secret }"
	if strings.Contains(config, "users: [ {") {
		return strings.Replace(config, "users: [ {", "users: [ "+spy+", {", 1)
	}
	return strings.Replace(config, "users: [", "users: [ "+spy, 1)
}

func attacking(t *testing.T, g *guarded, role string) *attacker {
	t.Helper()
	nodetest.WantReady(t, g.Node)
	spy := g.server.Conn(t, "spy", "secret", "")
	a := &attacker{guarded: g, t: t, nc: g.server.Conn(t, role, "secret", "_INBOX_"+role), all: nodetest.JetStream(t, spy),
		created: map[string]time.Time{}}
	for _, subjects := range []string{"tranche.>", ackOfOther} {
		testenv.Must(spy.Subscribe(subjects, func(msg *nats.Msg) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.seen = append(a.seen, msg)
		}))(t)
	}
	testenv.NoError(t, spy.Flush())
	nodetest.Until(t, "both services have consumers", func() bool {
		return !a.when("accounts").IsZero() && !a.when("statement").IsZero()
	})
	for _, name := range []string{"accounts", "statement", wire.StreamEvent, wire.StreamDead} {
		a.created[name] = a.when(name)
	}
	return a
}

// when says since when there is a stream, or a consumer of requests; zero when there is none. That no one answers says
// neither.
func (a *attacker) when(name string) (at time.Time) {
	a.t.Helper()
	nodetest.Until(a.t, "JetStream says since when there is "+name, func() bool {
		var err error
		at, err = a.made(name)
		return err == nil || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound)
	})
	return at
}

func (a *attacker) made(name string) (time.Time, error) {
	if strings.HasPrefix(name, "TRANCHE_") {
		stream, err := a.all.Stream(a.t.Context(), name)
		if err != nil {
			return time.Time{}, err
		}
		return stream.CachedInfo().Created, nil
	}
	consumer, err := a.all.Consumer(a.t.Context(), wire.StreamWork, name)
	if err != nil {
		return time.Time{}, err
	}
	return consumer.CachedInfo().Created, nil
}

// remade says whether a stream or consumer is gone, or another one than before.
func remade(name string) func(*attacker) bool {
	return func(a *attacker) bool { return !a.when(name).Equal(a.created[name]) }
}

// came says whether something came to a subject within the account of the nodes that has a mark in it.
func came(subject, mark string) func(*attacker) bool {
	return func(a *attacker) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, msg := range a.seen {
			if msg.Subject == subject && (bytes.Contains(msg.Data, []byte(mark)) || fmt.Sprint(msg.Header) == mark) {
				return true
			}
		}
		return false
	}
}

// ask publishes a question whose answer is to go somewhere. That a server refuses it is what is hoped for.
func (a *attacker) ask(subject, reply string, body []byte) {
	a.t.Helper()
	msg := &nats.Msg{Subject: subject, Reply: reply, Data: body}
	testenv.NoError(a.t, a.nc.PublishMsg(msg))
}

// utter has JetStream publish what the attacker likes to a subject: it asks for a note of its own.
func (a *attacker) utter(subject string, header nats.Header, body []byte) {
	a.t.Helper()
	note := "tranche.flow.accounts." + uuid.NewString()
	msg := &nats.Msg{Subject: note, Header: header, Data: body}
	testenv.Must(nodetest.JetStream(a.t, a.nc).PublishMsg(a.t.Context(), msg))(a.t)
	a.ask("$JS.API.DIRECT.GET.TRANCHE_FLOW."+note, subject, nil)
}

// asking is an attack by the answer to a question.
func asking(question, reply string) func(*attacker) {
	return func(a *attacker) { a.ask(question, reply, nil) }
}

// forgedRequest is one that services take for a node's.
func forgedRequest(endpoint string) (nats.Header, []byte) {
	b := wire.NewRequestBuilder(endpoint, wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1,
		Generation: 1, Mode: wire.ModeBatch}, 1<<20)
	b.Add(0, "C0", []byte(`{"id":"`+marked+`"}`))
	msg := b.Msg()
	msg.Header.Del(wire.HeaderMsgID)
	return msg.Header, msg.Data
}

// takeOver has statement's consumer deleted, and remade so that its requests come to the attacker, and begins a run.
func takeOver(a *attacker) {
	var err error
	a.request = nil
	a.heard, err = a.nc.SubscribeSync(a.nc.NewInbox())
	testenv.NoError(a.t, err)
	a.utter("$JS.API.CONSUMER.DELETE.TRANCHE_WORK.statement", nil, nil)
	a.utter("$JS.API.CONSUMER.CREATE.TRANCHE_WORK.statement.tranche.work.statement", nil, fmt.Appendf(nil,
		`{"stream_name":"TRANCHE_WORK","config":{"durable_name":"statement","filter_subject":"tranche.work.statement",`+
			`"deliver_subject":%q,"ack_policy":"explicit"}}`, a.heard.Subject))
	testenv.NoError(a.t, a.nc.FlushTimeout(nodetest.Stuck))
	a.taken = a.Start(a.t, nodetest.Request("statement"), 20)
}

// tookOver answers what has come of the run that takeOver began, and says whether that completed the run. The stream of
// replies is changed so that the attacker's own lie there as statement's, with no header that gives them away; nodes
// change it back.
func tookOver(a *attacker) bool {
	if msg, err := a.heard.NextMsg(10 * time.Millisecond); err == nil {
		a.request = msg
	}
	if a.request != nil {
		a.utter("$JS.API.STREAM.UPDATE.TRANCHE_REPLY", nil, a.transformed())
		testenv.NoError(a.t, a.nc.PublishMsg(forgedReply(a.request)))
	}
	return a.Number(a.t, `SELECT count(*) FROM batchrun r JOIN work_result p ON p.run_id = r.id
		WHERE r.id = $1 AND r.state = 'completed' AND r.done = 20 AND convert_from(p.result, 'UTF8') LIKE '%' || $2 || '%'`,
		a.taken, marked) == 20
}

// outrun says that the run that takeOver began is complete without the attacker: a node fixed the consumer first.
func outrun(a *attacker) bool {
	return a.Number(a.t, `SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, a.taken) == 1
}

// transformed are the settings of the stream of replies, except one.
func (a *attacker) transformed() []byte {
	replies := testenv.Must(a.all.Stream(a.t.Context(), wire.StreamReply))(a.t)
	config := replies.CachedInfo().Config
	config.SubjectTransform = &jetstream.SubjectTransformConfig{
		Source: "tranche.reply.accounts", Destination: "tranche.reply.statement"}
	return testenv.Must(json.Marshal(config))(a.t)
}

var ordinalIn = regexp.MustCompile(`"i":(\d+)`)

func forgedReply(request *nats.Msg) *nats.Msg {
	var slots []string
	for _, item := range ordinalIn.FindAllSubmatch(request.Data, -1) {
		slots = append(slots, fmt.Sprintf(`{"i":%s,"d":{"of":%q}}`, item[1], marked))
	}
	reply := nats.NewMsg("tranche.reply.accounts")
	reply.Data = []byte(`{"slots":[` + strings.Join(slots, ",") + `]}`)
	for _, name := range []string{wire.HeaderVersion, wire.HeaderRun, wire.HeaderStep,
		wire.HeaderSlice, wire.HeaderAttempt, wire.HeaderGeneration, wire.HeaderMode} {
		reply.Header.Set(name, request.Header.Get(name))
	}
	reply.Header.Set(wire.HeaderService, "statement")
	reply.Header.Set(wire.HeaderFinal, fmt.Sprint(len(slots)))
	return reply
}

func attacks() []attack {
	const (
		next  = "$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK.accounts"
		info  = "$JS.API.CONSUMER.INFO.TRANCHE_WORK.accounts"
		remit = "$JS.API.CONSUMER.CREATE.TRANCHE_WORK.statement.tranche.work.statement"
	)
	all := []attack{
		{name: "ask another endpoint", role: "accounts", do: func(a *attacker) {
			header, body := forgedRequest("statement")
			a.utter("tranche.work.statement", header, body)
		}, harmed: came("tranche.work.statement", marked)},
		{name: "delete a stream", role: "accounts",
			do:     func(a *attacker) { a.utter("$JS.API.STREAM.DELETE.TRANCHE_EVENT", nil, nil) },
			harmed: remade(wire.StreamEvent)},
		{name: "delete a stream by the end of a pull", role: "accounts", do: func(a *attacker) {
			a.ask(next, "$JS.API.STREAM.DELETE.TRANCHE_DEAD", []byte(`{"batch":1,"no_wait":true}`))
		}, harmed: remade(wire.StreamDead)},
		{name: "delete another's consumer", role: "accounts",
			do:     func(a *attacker) { a.utter("$JS.API.CONSUMER.DELETE.TRANCHE_WORK.statement", nil, nil) },
			harmed: remade("statement")},
		{name: "change another's consumer", role: "accounts", do: func(a *attacker) {
			a.utter(remit, nil, []byte(`{"stream_name":"TRANCHE_WORK","action":"","config":{"durable_name":"statement",`+
				`"filter_subject":"tranche.work.statement","ack_policy":"explicit","ack_wait":15000000000,"max_deliver":20,`+
				`"max_ack_pending":10000,"max_waiting":4096,"metadata":{"tranche-concurrency":"1"}}}`))
		}, harmed: func(a *attacker) bool {
			consumer, err := a.all.Consumer(a.t.Context(), wire.StreamWork, "statement")
			return err == nil && stream.SettingsOf(consumer.CachedInfo()).Concurrency == 1
		}},
		{name: "take another's work and complete its run", role: "accounts", do: takeOver, harmed: tookOver,
			missed: outrun},
		{name: "have JetStream tell of a consumer elsewhere", role: "accounts", do: asking(info, "tranche.wake"),
			harmed: came("tranche.wake", "consumer_info_response")},
		{name: "have JetStream publish by an acknowledgement of a reply", role: "accounts",
			do:     asking("tranche.reply.accounts", "tranche.event.run.completed"),
			harmed: came("tranche.event.run.completed", wire.StreamReply)},
		{name: "have JetStream publish by the acknowledgement of a request", role: "web",
			// With no body it would end the service's pull, as an answer from another account: that takes an AckWait.
			do:     func(a *attacker) { a.ask("tranche.work.accounts", "tranche.event.run.completed", []byte("{}")) },
			harmed: came("tranche.event.run.completed", wire.StreamWork)},
		{name: "have JetStream tell of a stream elsewhere", role: "ops",
			do:     asking("$JS.API.STREAM.INFO.TRANCHE_WORK", "tranche.work.statement"),
			harmed: came("tranche.work.statement", "stream_info_response")},
		{name: "acknowledge and fetch for another endpoint", role: "accounts",
			do:     func(a *attacker) { a.ask(ackOfOther, a.nc.NewInbox(), []byte("+NXT")) },
			harmed: came(ackOfOther, "+NXT")},
		{name: "have a service publish as itself", role: "ops", do: asking("$SRV.PING", "tranche.reply.accounts"),
			harmed: came("tranche.reply.accounts", "ping_response")},
		{name: "have a service ask", role: "ops", do: asking("$SRV.STATS", "tranche.work.accounts"),
			harmed: came("tranche.work.accounts", "stats_response")},
	}
	all = append(all, attack{name: "remove the state of others' flows by a roll-up", role: "accounts", noReply: true,
		do: func(a *attacker) {
			testenv.Must(a.all.Publish(a.t.Context(), plantedState, []byte("{}")))(a.t)
			rollup := nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupAll}}
			_, err := nodetest.JetStream(a.t, a.nc).PublishMsg(a.t.Context(), &nats.Msg{Subject: "tranche.flow.accounts.x.0",
				Header: rollup})
			testenv.Fails(a.t, err, "a roll-up is taken")
		}, harmed: func(a *attacker) bool {
			stream := testenv.Must(a.all.Stream(a.t.Context(), wire.StreamFlow))(a.t)
			_, err := stream.GetLastMsgForSubject(a.t.Context(), plantedState)
			if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
				a.t.Fatal(err)
			}
			return err != nil
		}})
	for _, subject := range []string{"tranche.event.run.completed", "tranche.dead.statement", "tranche.reply.statement",
		"tranche.stage.statement.1.0.statement", "tranche.call.web.token.statement", "tranche.flow.statement.x.0",
		"tranche.direct.statement", "tranche.tracker.open", "tranche.collect.c"} {
		all = append(all, attack{name: "forge " + subject, role: "accounts", harmed: came(subject, marked),
			do: func(a *attacker) { a.utter(subject, nil, []byte(marked)) }})
	}
	for role, subject := range map[string]string{"accounts": "tranche.reply.accounts", "web": "tranche.work.accounts",
		"statement": "tranche.flow.statement.x.9"} {
		all = append(all, attack{name: "have a server tell of a message's way elsewhere", role: role, noReply: true,
			do: func(a *attacker) {
				trace := nats.Header{"Nats-Trace-Dest": {"tranche.event.run.traced"}}
				testenv.NoError(a.t, a.nc.PublishMsg(&nats.Msg{Subject: subject, Header: trace, Data: []byte("{}")}))
			}, harmed: came("tranche.event.run.traced", "")})
	}
	for role, subjects := range map[string][]string{
		"accounts": {"tranche.reply.statement", "tranche.stage.statement.1.0.statement", "tranche.call.web.t.statement",
			"tranche.dead.statement", "tranche.work.statement", "tranche.direct.statement", "tranche.event.run.completed",
			"tranche.wake", "tranche.flow.statement.x.0", "tranche.tracker.open", "tranche.collect.c"},
		"statement": {"tranche.reply.accounts", "tranche.stage.statement.1.0.accounts", "tranche.dead.accounts",
			"tranche.flow.accounts.x.0"},
		"web": {"tranche.work.statement", "tranche.direct.statement", "tranche.reply.accounts", "tranche.collect.c",
			"tranche.flow.accounts.x", "tranche.call.web.t.accounts", "tranche.event.run.completed"},
		"ops": {"tranche.work.accounts", "tranche.reply.accounts", "tranche.event.run.completed", "tranche.tracker.list"},
	} {
		for _, subject := range subjects {
			all = append(all, attack{name: "publish to " + subject, role: role, noReply: true,
				do:     func(a *attacker) { a.ask(subject, "", []byte(marked)) },
				harmed: came(subject, marked)})
		}
		all = append(all, attack{name: "acknowledge another's request by a reply subject", role: role, noReply: true,
			do:     asking("$JS.API.INFO", "$JS.ACK.TRANCHE_WORK.statement.1.1.1.1.0"),
			harmed: func(*attacker) bool { return false }})
	}
	return all
}

// succeeds attacks until there is harm.
func (each attack) succeeds(a *attacker) bool {
	for range 20 {
		each.do(a)
		for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
			if each.harmed(a) {
				return true
			}
			if each.missed != nil && each.missed(a) {
				break
			}
			if time.Now().After(deadline) {
				return false
			}
		}
	}
	return false
}

// Permissions alone let a service, a caller and a viewer do harm by reply subjects.
func TestAttacksSucceedWithinOneAccount(t *testing.T) {
	t.Parallel()
	config := testenv.Must(os.ReadFile("testdata/one_account.conf"))(t) // what permissions can say without accounts
	g := setupGuarded(t, spied(withPasswords(string(config))))
	for _, each := range attacks() {
		if each.noReply {
			continue
		}
		a := attacking(t, g, each.role)
		if !each.succeeds(a) {
			t.Errorf("%s cannot %s", each.role, each.name)
		}
		a.nc.Close()
	}
}

// PROOF: who may do what, 14.
// With accounts none of the attacks has an effect, and afterwards everything works.
func TestAttacksFailAcrossAccounts(t *testing.T) {
	t.Parallel()
	g := setupGuarded(t, spied(documented(t)))
	by := map[string]*attacker{}
	for _, role := range []string{"accounts", "statement", "web", "ops"} {
		by[role] = attacking(t, g, role)
	}
	for _, each := range attacks() {
		each.do(by[each.role])
	}
	for _, a := range by {
		testenv.NoError(t, a.nc.FlushTimeout(nodetest.Stuck))
	}
	g.Want(t, g.Start(t, nodetest.Request("statement"), 100), 1, 100, 0)
	for _, each := range attacks() {
		if each.harmed(by[each.role]) {
			t.Errorf("%s could %s", each.role, each.name)
		}
	}
	g.Check(t)
}
