package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const chartDir = "../../deploy/helm"

// container is what the chart's golden file says of the nodes' container.
type container struct {
	Args []string
	Env  []struct{ Name, Value string }

	Startup, Liveness, Readiness probe
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// chartContainer reads it: no Kubernetes is needed to know how one would start a node, and probe it.
func chartContainer(t *testing.T) (c container) {
	t.Helper()
	text := testenv.Must(os.ReadFile(chartDir + "/testdata/least.golden.yaml"))(t)
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args      []string
							Env       []struct{ Name, Value string }
							Startup   probe `yaml:"startupProbe"`
							Liveness  probe `yaml:"livenessProbe"`
							Readiness probe `yaml:"readinessProbe"`
						}
					}
				}
			}
		}
		testenv.MustSame(t, decoder.Decode(&object), nil, "the chart has no Deployment")
		if object.Kind == "Deployment" {
			return container(object.Spec.Template.Spec.Containers[0])
		}
	}
}

// A pod of the chart is probed by a kubelet and scraped by Prometheus at its own address, and the API is called by the
// names of the chart's service; by no others.
func TestAPodOfTheChartIsProbedAndCalled(t *testing.T) {
	t.Parallel()
	c := chartContainer(t)
	env := []string{"TRANCHE_AUTH=on"} // of the image
	for _, v := range c.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	s := launchIn(t, env, true, append(c.Args[1:], "--database", testenv.Database(t), "--nats", testenv.NATS(t).URL(),
		"--listen", "0.0.0.0:0", "--metrics-listen", "127.0.0.1:0")...)
	ask := func(where, path, host string) (code int) {
		t.Helper()
		req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, where+path, nil))(t)
		req.Host, req.Close = host, true
		req.Header.Set("User-Agent", "kube-probe/1.31")
		code, text := testenv.Do(t, req)
		if code >= http.StatusMultipleChoices {
			t.Logf("%s%s for %s: %s", where, path, host, text)
		}
		return code
	}
	api, pod := s.where["api"], "10.244.1.7:8480"
	for _, p := range []probe{c.Startup, c.Liveness, c.Readiness} {
		if code := ask(api, p.HTTPGet.Path, pod); code != http.StatusOK || p.HTTPGet.Port != "api" {
			t.Errorf("the kubelet's probe %+v is answered %d", p, code)
		}
	}
	testenv.Same(t, ask(strings.TrimSuffix(s.where["metrics"], "/metrics"), "/metrics", "10.244.1.7:9480"), 200,
		"a scrape is answered")
	for host, want := range map[string]int{
		"batch-tranche": 401, "batch-tranche.jobs": 401, "batch-tranche.jobs.svc:8480": 401,
		"batch-tranche.jobs.svc.cluster.local": 401, pod: 403, "evil.example": 403,
	} {
		testenv.Same(t, ask(api, "/api/v1/runs", host), want, "a call for %s is answered", host)
	}
	testenv.Same(t, ask(api, "/metrics", pod), http.StatusUnauthorized, "metrics of the API without a token are answered")
	testenv.Must(s.End(t))(t)
}

// The chart takes every setting of serve but those that it makes itself, and no other.
func TestTheChartKnowsTheSettings(t *testing.T) {
	t.Parallel()
	text := testenv.Must(os.ReadFile(chartDir + "/tranche/values.schema.json"))(t)
	var schema struct {
		Properties struct {
			Settings struct {
				PropertyNames struct {
					AnyOf []struct{ Enum []string }
				}
			}
		}
	}
	testenv.NoError(t, json.Unmarshal(text, &schema))
	known := schema.Properties.Settings.PropertyNames.AnyOf[1].Enum
	for _, v := range chartContainer(t).Env {
		known = append(known, v.Name)
	}
	// By secrets of their own, without a file for each pod, or for a server that the chart does not start.
	known = append(known, "TRANCHE_NATS_CREDS", "TRANCHE_TLS_CERT", "TRANCHE_TLS_KEY", "TRANCHE_NATS_CONTEXT",
		"TRANCHE_NATS_LISTEN", "TRANCHE_NATS_MAX_PAYLOAD", "TRANCHE_NO_MIGRATE", "TRANCHE_DASHBOARD_DIR")
	settings := []string{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[serveCommand]()) {
		if name := field.Tag.Get("env"); name != "" {
			settings = append(settings, name)
		}
	}
	slices.Sort(known)
	slices.Sort(settings)
	known = slices.Compact(known)
	testenv.SameList(t, known, settings, "the chart's settings")
}
