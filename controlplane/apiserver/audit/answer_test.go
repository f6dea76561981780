package audit

import (
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
)

// What no sink takes is not kept: of a watch nothing, of text nothing, of a
// long answer nothing once it is longer than the sink that takes most.
func TestRoom(t *testing.T) {
	file := t.TempDir() + "/policy"
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: RequestResponse}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	limit := Truncating{Enabled: true, MaxEvent: 1000, MaxBatch: 1000}
	chunk := []byte(`{"kind":"` + strings.Repeat("x", 291))
	for _, c := range []struct {
		name, verb, media string
		also              Truncating // of a second sink
		chunks, kept      int
		cut               bool
	}{
		{"short", "get", "application/json", limit, 3, 900, false},
		{"long", "get", "application/json", limit, 4, 0, true},
		{"another sink takes more", "get", "application/json", Truncating{Enabled: true, MaxEvent: 2000}, 4, 1200, false},
		{"another sink takes all", "get", "application/json", Truncating{}, 100, 30000, false},
		{"protobuf is shorter", "get", "application/vnd.kubernetes.protobuf", limit, 6, 1800, false},
		{"too long even so", "get", "application/vnd.kubernetes.protobuf", limit, 7, 0, true},
		{"YAML with indents", "get", "application/yaml", limit, 54, 0, true},
		{"text", "get", "text/plain", limit, 1, 0, false},
		{"watch", "watch", "application/json", limit, 100, 0, false},
	} {
		p, err := Load(file)
		if err != nil {
			t.Fatal(err)
		}
		to := &kept{}
		p.To("a", to, false, limit)
		p.To("b", to, false, c.also)
		info := &request.Info{IsResource: true, Verb: c.verb, Version: "v1", Resource: "pods"}
		w, trail, ok := p.Begin(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), info, &user.DefaultInfo{}, time.Now())
		if !ok {
			t.Fatal("refused")
		}
		w.Header().Set("Content-Type", c.media)
		for range c.chunks {
			_, _ = w.Write(chunk)
		}
		if got := trail.answer.body.Len(); got != c.kept || trail.answer.cut != c.cut {
			t.Errorf("%s: %d bytes kept, cut %v", c.name, got, trail.answer.cut)
		}
		trail.End(nil)
		if ev := to.events[len(to.events)-1]; ev.Stage != auditv1.StageResponseComplete || (ev.Annotations[truncatedNote] == "true") != c.cut {
			t.Errorf("%s: %v", c.name, ev)
		}
	}
}
