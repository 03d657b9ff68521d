package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// clusterReplicas is how many copies a stream has in a cluster, where no one says how many: one server may be lost.
const clusterReplicas = 3

// UsualReplicas is how many copies the streams are to have on the server of a connection, where no one says how many.
// It needs a connection that is there.
func UsualReplicas(nc *nats.Conn) int {
	if nc.ConnectedClusterName() == "" {
		return DefaultReplicas
	}
	return clusterReplicas
}

// Codes of errors of JetStream's that are not in its client.
const (
	codeNoPeers      = 10005 // its text names why none of the servers suits, or too few do
	codeUnavailable  = 10008 // no leader, for now
	codeNotLeader    = 10009
	codeNotClustered = 10074
)

// NotClustered reports whether JetStream has refused replicas because there is only the one server.
func NotClustered(err error) bool { return hasCode(err, codeNotClustered) }

// TooFewServers reports whether JetStream has found too few servers for the replicas: perhaps not all are up.
func TooFewServers(err error) bool { return hasCode(err, codeNoPeers) && !NoStorage(err) }

// NoStorage reports whether JetStream, or the account, has no room for a stream.
func NoStorage(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return false
	}
	switch api.ErrorCode {
	case 10047, 10023, 10028, 10002: // of the server's storage, its resources, its memory; of the account's
		return true
	}
	return api.ErrorCode == codeNoPeers && strings.Contains(api.Description, "insufficient storage")
}

// Refused reports whether JetStream has said no to what a stream is to be like: it says so again as long as
// nothing changes there.
func Refused(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode != jetstream.JSErrCodeStreamNotFound && !Unavailable(err) &&
		!errors.Is(err, jetstream.ErrJetStreamNotEnabled) &&
		!errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
}

// Unavailable reports whether JetStream has said that it cannot work for now: it has no leader.
func Unavailable(err error) bool {
	return hasCode(err, codeUnavailable) || hasCode(err, codeNotLeader)
}

func hasCode(err error, code jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == code
}

// State is one of the streams as it is, beside what is wanted of it.
type State struct {
	Want jetstream.StreamConfig
	Have *jetstream.StreamInfo // nil: there is none
}

// Read looks at all of the streams and changes nothing.
func Read(ctx context.Context, js jetstream.JetStream, cfg Config) ([]State, error) {
	all := cfg.all()
	states := make([]State, len(all))
	for i, want := range all {
		states[i].Want = want
		stream, err := js.Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at stream %s: %w", want.Name, err)
		}
		states[i].Have = stream.CachedInfo() // just fetched
		if have := states[i].Have.Config.Replicas; cfg.MoreReplicas {
			states[i].Want.Replicas = max(want.Replicas, have)
		}
	}
	return states, nil
}

// Differs says in what the stream is not as it is wanted; nothing when it is, or is not there.
func (s *State) Differs() (all []string) {
	if s.Have == nil {
		return nil
	}
	have, want := &s.Have.Config, &s.Want
	say := func(differs bool, what string, have, want any) {
		if differs {
			all = append(all, fmt.Sprintf("%s %v instead of %v", what, have, want))
		}
	}
	is := want.Metadata[metaInstallation]
	say(is != "" && have.Metadata[metaInstallation] != is, "installation", have.Metadata[metaInstallation], is)
	say(have.Replicas != want.Replicas, "replicas", have.Replicas, want.Replicas)
	say(have.MaxBytes != want.MaxBytes, "bytes", have.MaxBytes, want.MaxBytes)
	say(have.MaxAge != want.MaxAge, "age", have.MaxAge, want.MaxAge)
	say(len(have.Subjects) != 1 || have.Subjects[0] != want.Subjects[0], "subjects", have.Subjects, want.Subjects)
	say(have.Discard != want.Discard, "discard", have.Discard, want.Discard)
	say(have.Duplicates != want.Duplicates, "duplicate window", have.Duplicates, want.Duplicates)
	say(have.AllowMsgTTL != want.AllowMsgTTL, "times to live", have.AllowMsgTTL, want.AllowMsgTTL)
	say(have.AllowDirect != want.AllowDirect, "direct access", have.AllowDirect, want.AllowDirect)
	say(have.AllowRollup != want.AllowRollup, "roll-ups", have.AllowRollup, want.AllowRollup)
	say(max(have.MaxMsgsPerSubject, 0) != max(want.MaxMsgsPerSubject, 0), "messages a subject", have.MaxMsgsPerSubject,
		want.MaxMsgsPerSubject)
	if !unlimited(have) {
		all = append(all, "limits that it should not have")
	}
	return all
}

// Loses says what would be lost if the stream were made as it is wanted; empty: nothing. JetStream deletes the oldest
// events to meet a lower limit, and no one has them elsewhere; the other streams would take nothing more.
func (s *State) Loses() string {
	if s.Have == nil {
		return ""
	}
	have, want, old := s.Have, &s.Want, s.Want.Discard == jetstream.DiscardOld
	if less(want.MaxBytes, have.Config.MaxBytes) && have.State.Bytes > uint64(max(want.MaxBytes, 0)) {
		consequence := "it would take nothing more: give it more, or wait until it holds less"
		if old {
			consequence = "the oldest would be deleted: give it more"
		}
		return fmt.Sprintf("stream %s holds %d bytes, and with room for %d %s", want.Name, have.State.Bytes, want.MaxBytes,
			consequence)
	}
	age := have.TimeStamp.Sub(have.State.FirstTime)
	if old && less(int64(want.MaxAge), int64(have.Config.MaxAge)) && have.State.Msgs > 0 && age > want.MaxAge {
		return fmt.Sprintf("stream %s holds messages of %s ago, and what is older than %s would be deleted: give it an age "+
			"of %s or more", want.Name, age.Round(time.Second), want.MaxAge, age.Truncate(time.Hour)+time.Hour)
	}
	return ""
}

// less compares limits, of which one that is not positive is none.
func less(limit, than int64) bool { return limit > 0 && (than <= 0 || limit < than) }

// Update makes the stream as it is wanted, unless it is, or is not there, or that would lose something.
func (s *State) Update(ctx context.Context, js jetstream.JetStream) error {
	if len(s.Differs()) == 0 {
		return nil
	}
	if err := sameKind(s.Have.Config, s.Want); err != nil {
		return err
	}
	if loses := s.Loses(); loses != "" {
		return &LossError{s.Want.Name, loses}
	}
	want := s.Want
	want.Metadata = maps.Clone(s.Have.Config.Metadata) // what others have noted of it stays
	if want.Metadata == nil { // of a server that notes nothing itself
		want.Metadata = map[string]string{}
	}
	if is := s.Want.Metadata[metaInstallation]; is != "" {
		want.Metadata[metaInstallation] = is
	}
	if _, err := js.UpdateStream(ctx, want); err != nil {
		return fmt.Errorf("update stream %s: %w", s.Want.Name, err)
	}
	return nil
}

// unlimited reports whether a stream has none of the limits and tricks that ours do without.
func unlimited(have *jetstream.StreamConfig) bool {
	return have.MaxMsgs <= 0 && have.MaxMsgSize <= 0 && !have.DiscardNewPerSubject &&
		!have.NoAck && have.SubjectTransform == nil && have.RePublish == nil && have.MaxConsumers <= 0
}
