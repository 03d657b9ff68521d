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

// clusterReplicas is the default number of replicas in a cluster: one server may fail.
const clusterReplicas = 3

// UsualReplicas returns the default number of replicas for the connected server.
func UsualReplicas(nc *nats.Conn) int {
	if nc.ConnectedClusterName() == "" {
		return DefaultReplicas
	}
	return clusterReplicas
}

// Error codes that the JetStream client does not define.
const (
	codeNoPeers      = 10005 // the text says why no server, or too few, fit
	codeUnavailable  = 10008 // no leader at present
	codeNotLeader    = 10009
	codeNotClustered = 10074
)

// NotClustered reports whether replicas were refused because the server is single.
func NotClustered(err error) bool { return hasCode(err, codeNotClustered) }

// TooFewServers reports whether there are too few servers for the replicas, perhaps temporarily.
func TooFewServers(err error) bool { return hasCode(err, codeNoPeers) && !NoStorage(err) }

// NoStorage reports whether the server or account has no space for a stream.
func NoStorage(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return false
	}
	switch api.ErrorCode {
	case 10047, 10023, 10028, 10002: // server: storage, resources, memory; account: resources
		return true
	}
	return api.ErrorCode == codeNoPeers && strings.Contains(api.Description, "insufficient storage")
}

// Refused reports whether JetStream rejects the stream's settings: it will until something changes there.
func Refused(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode != jetstream.JSErrCodeStreamNotFound && !Unavailable(err) &&
		!errors.Is(err, jetstream.ErrJetStreamNotEnabled) &&
		!errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
}

// Unavailable reports whether JetStream has no leader at present.
func Unavailable(err error) bool {
	return hasCode(err, codeUnavailable) || hasCode(err, codeNotLeader)
}

func hasCode(err error, code jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == code
}

// State is a stream's wanted and actual settings.
type State struct {
	Want jetstream.StreamConfig
	Have *jetstream.StreamInfo // nil if the stream does not exist
}

// Read returns the state of all streams.
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
			return nil, fmt.Errorf("check stream %s: %w", want.Name, err)
		}
		states[i].Have = stream.CachedInfo() // just fetched
		if have := states[i].Have.Config.Replicas; cfg.MoreReplicas {
			states[i].Want.Replicas = max(want.Replicas, have)
		}
	}
	return states, nil
}

// Differs lists the differences to the wanted settings; it is empty if the stream does not exist.
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

// Loses returns what applying the wanted settings would lose, or "". A lower limit deletes the oldest events, which
// exist nowhere else, and makes other streams refuse messages.
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

// less compares limits; one that is not positive means no limit.
func less(limit, than int64) bool { return limit > 0 && (than <= 0 || limit < than) }

// Update applies the wanted settings if they differ and nothing would be lost.
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
	want.Metadata = maps.Clone(s.Have.Config.Metadata) // keep entries of others
	if want.Metadata == nil {                          // servers without own metadata
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

// unlimited reports whether a stream has no limits or features that Tranche's streams lack.
func unlimited(have *jetstream.StreamConfig) bool {
	return have.MaxMsgs <= 0 && have.MaxMsgSize <= 0 && !have.DiscardNewPerSubject &&
		!have.NoAck && have.SubjectTransform == nil && have.RePublish == nil && have.MaxConsumers <= 0
}
