package natscluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// monitorTimeout bounds one question to a server's monitoring port.
const monitorTimeout = 2 * time.Second

// leaders is where a server says who leads what.
const leaders = "/jsz?accounts=1&streams=1&consumers=1"

// jsz is what a server says of JetStream on its monitoring port, as far as it is read here.
type jsz struct {
	Meta struct {
		Leader   string `json:"leader"`
		Size     int    `json:"cluster_size"`
		Replicas []peer `json:"replicas"`
	} `json:"meta_cluster"`
	Accounts []struct {
		Streams []struct {
			Name      string  `json:"name"`
			Cluster   cluster `json:"cluster"`
			Consumers []struct {
				Name    string  `json:"name"`
				Cluster cluster `json:"cluster"`
			} `json:"consumer_detail"`
		} `json:"stream_detail"`
	} `json:"account_details"`
}

type cluster struct {
	Leader   string `json:"leader"`
	Replicas []peer `json:"replicas"`
}

type peer struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	Offline bool   `json:"offline"`
}

// get asks a server's monitoring port.
func (s *natsProcess) get(path string, into any) bool {
	client := http.Client{Timeout: monitorTimeout}
	defer client.CloseIdleConnections()
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", s.monitor, path))
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(into) == nil
}

// leader asks the servers that are awake who leads something, until those that know agree.
func (c *servers) leader(of func(*jsz) string) string {
	found := ""
	for _, s := range c.servers {
		var said jsz
		if !s.answers() || s.isolated || !s.get(leaders, &said) {
			continue
		}
		name := of(&said)
		if name == "" {
			continue
		}
		if found != "" && found != name {
			return ""
		}
		found = name
	}
	return found
}

// MetaLeader returns the server that leads the cluster, or "" while there is none.
func (c *servers) MetaLeader() string {
	return c.leader(func(j *jsz) string { return j.Meta.Leader })
}

// StreamLeader returns the server that leads a stream, or "" while there is none.
func (c *servers) StreamLeader(stream string) string {
	return c.leader(func(j *jsz) string {
		for _, account := range j.Accounts {
			for _, s := range account.Streams {
				if s.Name == stream {
					return s.Cluster.Leader
				}
			}
		}
		return ""
	})
}

// awaitLeader waits until someone other than a server leads something, and returns who does. leads is one of the
// methods above.
func awaitLeader(t testing.TB, other string, leads func() string) string {
	t.Helper()
	name := ""
	await(t, "another server leads than "+other, func() bool {
		name = leads()
		return name != "" && name != other
	})
	return name
}

// steady is for how long leaders must stay until they count as elected: servers that were asleep may go on for a moment
// as if they still led.
const steady = 2 * time.Second

// AwaitElected waits until the servers that are awake know who leads the cluster and each stream and consumer, and it
// is one of them. It returns since when that has been so.
func (c *servers) AwaitElected(t testing.TB) (since time.Time) {
	t.Helper()
	await(t, "everything has a leader", func() bool {
		switch now := time.Now(); {
		case !c.elected():
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		return !since.IsZero() && time.Since(since) > steady
	})
	return since
}

func (c *servers) elected() bool {
	awake := map[string]bool{}
	for _, s := range c.servers {
		awake[s.name] = s.answers() && !s.isolated
	}
	for _, s := range c.servers {
		var said jsz
		if !awake[s.name] {
			continue
		}
		if !s.get(leaders, &said) || !awake[said.Meta.Leader] {
			return false
		}
		for _, account := range said.Accounts {
			for _, stream := range account.Streams {
				if !awake[stream.Cluster.Leader] {
					return false
				}
				for _, consumer := range stream.Consumers {
					if !awake[consumer.Cluster.Leader] {
						return false
					}
				}
			}
		}
	}
	return true
}

// AwaitCurrent waits until all servers are up, have a leader, and have caught up with what they keep.
func (c *servers) AwaitCurrent(t testing.TB) {
	t.Helper()
	await(t, "every NATS server is current", c.current)
}

func (c *servers) current() bool {
	if c.MetaLeader() == "" {
		return false
	}
	for _, s := range c.servers {
		var health struct {
			Status string `json:"status"`
		}
		var said jsz
		if !s.answers() || !s.get("/healthz", &health) || health.Status != "ok" || !s.get("/jsz", &said) ||
			said.Meta.Size != clusterSize {
			return false
		}
		for _, p := range said.Meta.Replicas { // which the leader alone knows
			if p.Offline || !p.Current {
				return false
			}
		}
	}
	return true
}
