package conformance

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// rawService is a service without the SDK, made to be broken. Without a flaw it does all that the page asks for.
type rawService struct {
	flaw string // what it does wrong
	nc   *nats.Conn
	js   jetstream.JetStream

	mu   sync.Mutex
	held map[string]rawDelivery
	jobs sync.WaitGroup
	few  chan struct{} // has one for each slow item at work for which no one waits
}

// rawDelivery is a request and when the consumer was made that delivered it.
type rawDelivery struct {
	msg      jetstream.Msg
	consumer string
	made     time.Time
}

func broken(f string) starter {
	return start(func(ctx context.Context, nc *nats.Conn) error {
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		s := &rawService{flaw: f, nc: nc, js: js, held: map[string]rawDelivery{}, few: make(chan struct{}, 4)}
		return s.serve(ctx)
	})
}

func (s *rawService) has(f string) bool { return s.flaw == f }

func (s *rawService) serve(ctx context.Context) error {
	if !s.has("is not listed") {
		listed, err := s.announce()
		if err != nil {
			return err
		}
		defer func() { _ = listed.Stop() }()
	}
	beating, stop := context.WithCancel(context.Background())
	var beat sync.WaitGroup
	beat.Go(func() { s.beat(beating) })
	defer beat.Wait()
	defer stop()
	var lane sync.WaitGroup
	if !s.has("has no lane for calls") && !s.has("says that it has a lane and reads none") {
		lane.Go(func() { s.read(ctx, wire.LaneOf(endpoint)) })
	}
	s.read(ctx, endpoint)
	lane.Wait()
	if !s.has("ends in the middle of work") {
		s.jobs.Wait()
	}
	s.nc.Flush() //nolint:errcheck // the test will see what is missing
	return nil
}

// read has all handled that comes by a consumer, until ctx ends.
func (s *rawService) read(ctx context.Context, name string) {
	for ctx.Err() == nil {
		consumer, err := s.js.Consumer(ctx, wire.StreamWork, name)
		for err == nil && ctx.Err() == nil {
			err = s.fetch(ctx, consumer)
		}
		gone := errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
			errors.Is(err, jetstream.ErrStreamNotFound)
		if gone && s.has("does not look for the streams again") {
			break
		}
		_ = backoff.Sleep(ctx, 50*time.Millisecond)
	}
	<-ctx.Done()
}

func (s *rawService) announce() (micro.Service, error) {
	figures := json.RawMessage(`{"chunks":1,"processed":1,"errors":0,"in_flight":0,"avg_per_item":1,"lane":true}`)
	if s.has("has no lane for calls") {
		figures = bytes.ReplaceAll(figures, []byte(`,"lane":true`), nil)
	}
	listed, err := micro.AddService(s.nc, micro.Config{
		Name: "raw", Version: "1.0.0", Metadata: map[string]string{"tranche": "1"},
		StatsHandler: func(*micro.Endpoint) any { return figures },
	})
	if err != nil {
		return nil, err
	}
	return listed, listed.AddEndpoint(endpoint, micro.HandlerFunc(func(r micro.Request) { _ = r.Respond(figures) }),
		micro.WithEndpointSubject("tranche.status."+endpoint))
}

func (s *rawService) fetch(ctx context.Context, consumer jetstream.Consumer) error {
	info, err := consumer.Info(ctx)
	if err != nil {
		return err
	}
	how := []jetstream.FetchOpt{jetstream.FetchMaxWait(10 * time.Second), jetstream.FetchHeartbeat(4 * time.Second)}
	if s.has("does not listen after the end of a pull") { // which Fetch does, when it is bounded in bytes
		how = append(how, jetstream.FetchMaxBytes(8<<20))
	}
	batch, err := consumer.Fetch(8, how...)
	if err != nil {
		return err
	}
	for messages := batch.Messages(); ; {
		select {
		case msg, more := <-messages:
			if !more {
				return batch.Error()
			}
			s.take(rawDelivery{msg, info.Name, info.Created})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *rawService) take(d rawDelivery) {
	msg := d.msg
	meta, err := msg.Metadata()
	if err != nil {
		return
	}
	id := fmt.Sprint(meta.Sequence.Stream, meta.Timestamp)
	s.mu.Lock()
	_, twice := s.held[id]
	s.held[id] = d
	s.mu.Unlock()
	if twice && !s.has("works on a redelivery beside the first") {
		return
	}
	s.jobs.Go(func() {
		if s.has("has calls wait behind chunks") && isCall(msg.Headers()) {
			s.awaitChunks()
		}
		s.handle(msg, id, int(meta.NumDelivered))
		s.mu.Lock()
		delete(s.held, id)
		s.mu.Unlock()
	})
}

// awaitChunks returns once all chunks are at work, and none waits, neither here nor in the stream.
func (s *rawService) awaitChunks() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		consumer, err := s.js.Consumer(ctx, wire.StreamWork, endpoint)
		if err == nil && consumer.CachedInfo().NumPending == 0 && s.chunksHeld() <= cap(s.few) {
			return
		}
		_ = backoff.Sleep(ctx, 50*time.Millisecond)
	}
}

func (s *rawService) chunksHeld() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.held {
		if !isCall(d.msg.Headers()) {
			n++
		}
	}
	return n
}

// isCall reports whether someone waits for the answer to a request.
func isCall(h nats.Header) bool { return h.Get(wire.HeaderMode) == "single" }

// beat sends heartbeats for what is held.
func (s *rawService) beat(ctx context.Context) {
	for ctx.Err() == nil {
		_ = backoff.Sleep(ctx, ownAckWait/4)
		s.mu.Lock()
		for _, d := range s.held {
			if !s.has("sends no heartbeats") && s.current(d) {
				_ = d.msg.InProgress()
			}
		}
		s.mu.Unlock()
	}
}

// current reports whether the consumer that delivered is still there.
func (s *rawService) current(d rawDelivery) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	consumer, err := s.js.Consumer(ctx, wire.StreamWork, d.consumer)
	return s.has("goes by sequences alone") || err == nil && consumer.CachedInfo().Created.Equal(d.made)
}

func (s *rawService) tell(id, how string) {
	s.mu.Lock()
	d := s.held[id]
	s.mu.Unlock()
	if s.current(d) {
		_ = s.nc.Publish(d.msg.(interface{ Reply() string }).Reply(), []byte(how))
	}
}

func (s *rawService) handle(msg jetstream.Msg, id string, deliveries int) {
	h := msg.Headers()
	r := &rawReply{service: s, request: h, subject: wire.ReplySubject(endpoint)}
	if version := h.Get(wire.HeaderVersion); version != "1" && version != "" && !s.has("drops other versions") {
		s.tell(id, map[bool]string{false: `-NAK {"delay":10000000000}`, true: "-NAK"}[s.has("hands versions back at once")])
		return
	}
	if !s.readable(h, r) {
		s.tell(id, map[bool]string{false: "+TERM", true: `-NAK {"delay":10000000000}`}[s.has("keeps bad headers")])
		return
	}
	items, params, err := s.parse(h, msg.Data())
	limit, _ := strconv.Atoi(cmp.Or(h.Get(wire.HeaderDeliveries), "5"))
	failure, how := &slotError{Code: "too_many_deliveries", Message: "again", Retry: true}, "+ACK"
	switch {
	case err != nil:
		failure, how = &slotError{Code: "bad_request", Message: err.Error()}, "+TERM"
		if s.has("drops unreadable bodies without a word") {
			s.tell(id, how)
			return
		}
	case deliveries > 1 && s.has("takes a redelivery for done"):
		s.tell(id, how)
		return
	case deliveries <= limit || s.has("tries indefinitely"):
		if s.has("acknowledges before it replies") {
			s.tell(id, how)
		}
		failure = s.obey(r, items, params)
	}
	if r.finish(failure, len(items)) != nil {
		how = `-NAK {"delay":500000000}`
	}
	if !s.has("never acknowledges") || how != "+ACK" {
		s.tell(id, how)
	}
}

var (
	rawID     = regexp.MustCompile(`^[0-9a-f-]{36}$`)
	rawNumber = regexp.MustCompile(`^\d+$`)
	rawReturn = regexp.MustCompile(
		`^tranche\.(stage\.[\w-]+\.[1-9]\d*\.\d+|call\.[\w-]+\.[\w-]+)\.` + endpoint + `$`)
)

func (s *rawService) readable(h nats.Header, r *rawReply) bool {
	to := h.Get(wire.HeaderReplyTo)
	if to != "" && !s.has("ignores Tranche-Reply-To") {
		if !rawReturn.MatchString(to) && !s.has("replies on any subject") {
			return false
		}
		r.subject = to
	}
	mode := h.Get(wire.HeaderMode)
	return h.Get(wire.HeaderVersion) == "1" && rawID.MatchString(h.Get(wire.HeaderSlice)) &&
		rawID.MatchString(h.Get(wire.HeaderRun)) && rawNumber.MatchString(h.Get(wire.HeaderStep)) &&
		rawNumber.MatchString(strings.TrimPrefix(h.Get(wire.HeaderAttempt), "0")) &&
		rawNumber.MatchString(strings.TrimPrefix(h.Get(wire.HeaderGeneration), "0")) &&
		(mode == "" || mode == "batch" || mode == "single")
}

type rawItem struct {
	I *int            `json:"i"`
	K *string         `json:"k"`
	D json.RawMessage `json:"d"`
	P map[string]struct {
		D json.RawMessage `json:"d"`
		T string          `json:"t"`
		B string          `json:"b"`
		R *wire.PartRef   `json:"r"`
	} `json:"p"`
}

func (s *rawService) parse(h nats.Header, body []byte) (items []rawItem, params map[string]string, err error) {
	if body, err = s.decode(h.Get(wire.HeaderEncoding), body); err != nil {
		return nil, nil, err
	}
	var content struct {
		Params map[string]string `json:"params"`
		Items  []rawItem         `json:"items"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if s.has("refuses unknown members") {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(&content); err != nil {
		return nil, nil, err
	}
	if s.has("takes parameters in front only") && !bytes.HasPrefix(body, []byte(`{"params"`)) {
		content.Params = nil
	}
	for _, item := range content.Items {
		if item.I == nil || item.K == nil || item.D == nil && item.P == nil {
			return nil, nil, errors.New("an item is not whole")
		}
	}
	if len(content.Items) == 0 {
		return nil, nil, errors.New("there are no items")
	}
	return content.Items, content.Params, nil
}

func (s *rawService) decode(encoding string, body []byte) ([]byte, error) {
	if encoding == "" {
		return body, nil
	}
	if encoding != "zstd" || s.has("does not decompress") {
		return nil, errors.New("unknown encoding " + encoding)
	}
	decoder, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1), zstd.IgnoreChecksum(true))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	limit := int64(16 << 20)
	if s.has("decompresses without end") {
		limit = 1 << 30
	}
	out, err := io.ReadAll(io.LimitReader(decoder, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(out)) > limit:
		return nil, errors.New("too large")
	case s.has("reads one frame"):
		return out[:min(len(out), firstFrame(body))], nil
	}
	return out, nil
}

// firstFrame returns how much the first frame holds, if it says so.
func firstFrame(body []byte) int {
	var h zstd.Header
	if h.Decode(body) == nil && h.HasFCS {
		return int(h.FrameContentSize)
	}
	return 1 << 30
}

// part asks a node for a part until it has all of it.
func (s *rawService) part(r *rawReply, ordinal int, step string, ref *wire.PartRef) (part []byte) {
	for int64(len(part)) < ref.Bytes {
		body := fmt.Sprintf(`{"slice":%q,"i":%d,"step":%q,"from":%d,"bytes":%d,"sha256":%q}`,
			r.request.Get(wire.HeaderSlice), ordinal, step, len(part), ref.Bytes, ref.SHA256)
		msg, err := s.nc.Request(wire.PartSubject(endpoint), []byte(body), patience)
		if err != nil {
			return nil
		}
		part = append(part, msg.Data...) // nothing with an error
	}
	return part
}

// obey does what the payloads ask for.
func (s *rawService) obey(r *rawReply, items []rawItem, params map[string]string) (failure *slotError) {
	for at, item := range items {
		ordinal := *item.I
		if s.has("numbers the items itself") {
			ordinal = at
		}
		var in instruction
		_ = json.Unmarshal(item.D, &in) // what it is not, it is not
		run := fmt.Sprintf("%s/0/%d/1/%.8x", r.request.Get(wire.HeaderRun), ordinal, sha256.Sum256([]byte(*item.K)))
		switch in.Do {
		case "hello":
			r.result(ordinal, `{"conformance":1}`)
		case "echo":
			r.result(ordinal, string(in.Value))
		case "info":
			key := *item.K
			if s.has("knows ASCII only") {
				key = strings.ToValidUTF8(strings.Map(func(c rune) rune { return min(c, 0x7f) }, key), "")
			}
			info, _ := json.Marshal(itemInfo{key, params, run}) // it can be written
			r.result(ordinal, string(info))
		case "fail", "retry":
			e := slotError{in.Code, in.Message, in.Do == "retry" && !s.has("never says retry")}
			r.fail(ordinal, e)
		case "twice":
			first, second := `"first"`, `"second"`
			if s.has("lets the last answer count") {
				first = second
			}
			r.result(ordinal, first)
			if s.has("sends both answers") {
				r.result(ordinal, second)
			}
		case "bytes":
			encoding := base64.StdEncoding
			if s.has("writes the base64 of URLs") {
				encoding = base64.URLEncoding
			}
			r.one(ordinal, fmt.Sprintf(`{"i":%d,"t":%q,"b":%q}`, ordinal, cmp.Or(in.Type, "application/octet-stream"),
				encoding.EncodeToString(counting(in.N))))
		case "big":
			r.result(ordinal, `"`+strings.Repeat("x", in.N)+`"`)
		case "partial":
			r.result(ordinal, `"sent"`)
			if !s.has("sends everything at the end") {
				r.flush()
			}
		case "part":
			switch p := item.P[in.Name]; {
			case p.R != nil && !s.has("ignores references"):
				r.add(fmt.Sprintf(`{"i":%d,"t":%q,"b":%q}`, ordinal, p.T,
					base64.StdEncoding.EncodeToString(s.part(r, ordinal, in.Name, p.R))))
			case p.B != "":
				r.add(fmt.Sprintf(`{"i":%d,"t":%q,"b":%q}`, ordinal, p.T, p.B))
			default:
				r.result(ordinal, cmp.Or(string(p.D), "null"))
			}
		case "":
			r.fail(ordinal, slotError{Code: "unknown_order", Message: "there is none"})
		case "slow":
			s.sleep(r, time.Duration(in.MS)*time.Millisecond)
			r.result(ordinal, `{}`)
		case "fail-chunk":
			return &slotError{in.Code, in.Message, in.Retry}
		}
	}
	return nil
}

// sleep is the work of an item that is slow. A call does it at once, a chunk when it has its turn.
func (s *rawService) sleep(r *rawReply, d time.Duration) {
	if !isCall(r.request) {
		s.few <- struct{}{}
		defer func() { <-s.few }()
	}
	_ = backoff.Sleep(context.Background(), d)
}

type rawReply struct {
	service *rawService
	request nats.Header
	subject string
	slots   []string
	bytes   int
	total   int
	sent    int // messages
	err     error
}

func (r *rawReply) result(ordinal int, result string) {
	if r.service.has("takes null for no result") && result == "null" {
		return
	}
	name := `"i"`
	if r.service.has("writes a member twice") {
		name = fmt.Sprintf(`"i":%d,"i"`, ordinal)
	}
	r.one(ordinal, fmt.Sprintf(`{%s:%d,"d":%s}`, name, ordinal, result))
}

// one adds a slot, or what stands for one that fits no message.
func (r *rawReply) one(ordinal int, slot string) {
	if len(slot) <= int(r.service.nc.MaxPayload())-4096 {
		r.add(slot)
		return
	}
	if r.service.has("sends pieces of which the hash is another one") && len(slot) < wire.MaxResult {
		r.flush()
		whole := wire.Whole{Ordinal: ordinal, Pieces: 1, Bytes: 3, SHA256: sha256.Sum256([]byte("abc"))}
		r.send(nats.Header{wire.HeaderPiece: {whole.Header(1)}}, nil)
		r.total++
		return
	}
	code := "result_too_large"
	if r.service.has("has its own code for what is too large") {
		code = "too_big"
	}
	r.fail(ordinal, slotError{Code: code, Message: "too large"})
}

func (r *rawReply) fail(ordinal int, e slotError) {
	text, _ := json.Marshal(e) // it can be written
	r.add(fmt.Sprintf(`{"i":%d,"e":%s}`, ordinal, text))
}

func (r *rawReply) add(slot string) {
	if limit := int(r.service.nc.MaxPayload()) - 4096; r.bytes+len(slot) > limit && !r.service.has("never splits") &&
		len(slot) < limit {
		r.flush()
	}
	r.slots = append(r.slots, slot)
	r.bytes += len(slot) + 1
	r.total++
}

func (r *rawReply) flush() { r.send(nats.Header{}, nil) }

func (r *rawReply) finish(failure *slotError, items int) error {
	s, total := r.service, r.total
	if s.has("counts items and not slots") && failure == nil {
		total = items
	}
	if s.has("counts the slots of the last message only") {
		total = len(r.slots)
	}
	fields := nats.Header{wire.HeaderFinal: {strconv.Itoa(total)}, wire.HeaderTook: {"0.25"}}
	if s.has("says in words how long it took") {
		fields.Set(wire.HeaderTook, "2 seconds")
	}
	if failure != nil && !s.has("says failures in the body only") {
		fields.Set(wire.HeaderErrorCode, failure.Code)
		fields.Set(wire.HeaderError, strings.ReplaceAll(failure.Message, "\n", " "))
	}
	if s.has("leaves out Tranche-Final") && failure == nil && items == 50 {
		fields.Del(wire.HeaderFinal)
	}
	r.send(fields, failure)
	return r.err
}

func (r *rawReply) send(fields nats.Header, failure *slotError) {
	s := r.service
	msg := &nats.Msg{Subject: r.subject, Header: fields}
	for _, name := range append(repeated(), wire.HeaderTrace) {
		if value := r.request[name]; len(value) > 0 {
			msg.Header[name] = value
		}
	}
	msg.Header.Set(wire.HeaderMsgID, uuid.NewString())
	if s.has("derives message ids from the slice") {
		msg.Header.Set(wire.HeaderMsgID, fmt.Sprintf("%s/%d", r.request.Get(wire.HeaderSlice), r.sent))
	}
	if s.has("forgets a header") {
		msg.Header.Del(wire.HeaderGeneration)
	}
	if s.has("drops the trace") {
		delete(msg.Header, wire.HeaderTrace)
	}
	msg.Data = []byte(`{"slots":[` + strings.Join(r.slots, ",") + `]`)
	if failure != nil {
		text, _ := json.Marshal(failure) // it can be written
		msg.Data = append(append(msg.Data, `,"error":`...), text...)
	}
	msg.Data = append(msg.Data, '}')
	if wire.IsPiece(fields) {
		msg.Data = []byte("abd")
	}
	r.slots, r.bytes = nil, 0
	r.sent++
	if err := s.publish(msg); err != nil {
		r.err = err
	}
}

func (s *rawService) publish(msg *nats.Msg) error {
	if strings.HasPrefix(msg.Subject, "tranche.call.") || s.has("does not wait for JetStream to have the reply") {
		return s.nc.PublishMsg(msg)
	}
	var err error
	for range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err = s.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil || errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		_ = backoff.Sleep(context.Background(), 50*time.Millisecond)
	}
	return err
}
