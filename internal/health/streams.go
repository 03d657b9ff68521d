package health

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// fill is how much of something that is limited is used.
type fill struct {
	subject string // a stream, or the account
	what    string
	used    uint64
	limit   uint64
	bytes   bool
}

func (f *fill) share() float64 { return float64(f.used) / float64(f.limit) }

// streamPrefix is how the names of our streams begin.
const streamPrefix = "TRANCHE_"

// accountSubject stands for all that the account may use.
const accountSubject = "the account"

// streams asks JetStream how full its streams and our account are.
func (w *Watch) streams(ctx context.Context) (fills []fill, known bool) {
	if !w.cfg.NC.IsConnected() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, natsTimeout)
	defer cancel()
	js, err := jetstream.New(w.cfg.NC)
	if err != nil {
		return nil, false
	}
	add := func(subject, what string, used uint64, limit int64, bytes bool) {
		if limit > 0 {
			fills = append(fills, fill{subject, what, used, uint64(limit), bytes})
		}
	}
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		if name := info.Config.Name; strings.HasPrefix(name, streamPrefix) {
			add(name, "bytes", info.State.Bytes, info.Config.MaxBytes, true)
			add(name, "messages", info.State.Msgs, info.Config.MaxMsgs, false)
			add(name, "consumers", uint64(max(info.State.Consumers, 0)), int64(info.Config.MaxConsumers), false)
		}
	}
	if list.Err() != nil {
		return nil, false
	}
	account, err := js.AccountInfo(ctx)
	if err != nil {
		return nil, false
	}
	add(accountSubject, "storage", account.Store, account.Limits.MaxStore, true)
	add(accountSubject, "memory", account.Memory, account.Limits.MaxMemory, true)
	add(accountSubject, "streams", uint64(max(account.Streams, 0)), int64(account.Limits.MaxStreams), false)
	add(accountSubject, "consumers", uint64(max(account.Consumers, 0)), int64(account.Limits.MaxConsumers), false)
	return fills, true
}
