package storm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// controllersTime is how long controllers may take to look at what is made.
const controllersTime = 20 * time.Second

// numbers are objects that ask in a few bytes for as much as an int32 counts, in a namespace
// whose quota lets a few pods through. What comes back is whether controllers got to them.
func numbers(s *storm, y *tally) {
	const most = 2147483647
	s.admin.must(s.t, "POST", "/api/v1/namespaces", `{"metadata":{"name":"numbers"}}`)
	s.admin.must(s.t, "POST", "/api/v1/namespaces/numbers/resourcequotas", `{"metadata":{"name":"few"},"spec":{"hard":{"pods":"40"}}}`)
	template := `"template":{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":%q,"containers":[{"name":"c","image":"i"}]}}`
	job := fmt.Sprintf(`"completionMode":"Indexed","completions":%d,"parallelism":1,"successPolicy":{"rules":[{"succeededIndexes":"0-%d"}]},`+template, most, most-1, "Never")
	always := fmt.Sprintf(`"replicas":%d,"selector":{"matchLabels":{"a":"b"}},`+template, most, "Always")
	made := []struct{ path, name, spec, seen string }{
		{"/apis/batch/v1/namespaces/numbers/jobs", "job", job, `"completedIndexes":"0"`},
		{"/apis/apps/v1/namespaces/numbers/statefulsets", "ordered", `"serviceName":"s",` + always, `"observedGeneration":1`},
		{"/apis/apps/v1/namespaces/numbers/statefulsets", "parallel", `"podManagementPolicy":"Parallel","serviceName":"s",` + always, `"observedGeneration":1`},
		{"/apis/apps/v1/namespaces/numbers/deployments", "deployment", always, `"observedGeneration":1`},
		{"/apis/apps/v1/namespaces/numbers/replicasets", "replicaset", always, `"observedGeneration":1`},
	}
	for _, m := range made {
		for i := range s.size(3, 10) {
			s.one.must(s.t, "POST", m.path, fmt.Sprintf(`{"metadata":{"name":"%s-%d"},"spec":{%s}}`, m.name, i, m.spec))
		}
		if m.name == "job" { // before others take the quota
			s.succeed("numbers", `batch.kubernetes.io/job-completion-index=0`)
		}
	}
	for i := range s.size(3, 10) {
		for _, m := range made {
			answer, until := "not seen by a controller: "+m.name, time.Now().Add(controllersTime)
			for answer != "seen" && time.Now().Before(until) && s.running() {
				if _, body := s.admin.send("GET", fmt.Sprintf("%s/%s-%d", m.path, m.name, i), ""); strings.Contains(body, m.seen) {
					answer = "seen"
				} else {
					time.Sleep(50 * time.Millisecond)
				}
			}
			y.add(answer, 1)
		}
	}
	if s.running() {
		s.admin.must(s.t, "DELETE", "/api/v1/namespaces/numbers", "")
	}
}

// succeed has the pods of a selector end well, as their node would say, as they come.
func (s *storm) succeed(namespace, selector string) {
	until := time.Now().Add(controllersTime)
	for done := map[string]bool{}; len(done) < s.size(3, 10) && time.Now().Before(until) && s.running(); time.Sleep(50 * time.Millisecond) {
		_, body := s.admin.send("GET", fmt.Sprintf("/api/v1/namespaces/%s/pods?labelSelector=%s", namespace, strings.ReplaceAll(selector, "=", "%3D")), "")
		var list struct {
			Items []struct{ Metadata struct{ Name string } }
		}
		_ = json.Unmarshal([]byte(body), &list) // one that is cut off has none
		for _, p := range list.Items {
			code, _ := s.admin.do(request{method: "PATCH", path: fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/status", namespace, p.Metadata.Name),
				kind: "application/merge-patch+json", body: strings.NewReader(`{"status":{"phase":"Succeeded"}}`)})
			if code == http.StatusOK {
				done[p.Metadata.Name] = true
			}
		}
	}
}
