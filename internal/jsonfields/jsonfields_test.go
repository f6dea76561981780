package jsonfields

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestDecode(t *testing.T) {
	for doc, c := range map[string]struct{ unknown, err string }{
		`{"spec":{"containers":[{"name":"c","image":"i"}]}}`:                            {"", ""},
		`{"spec":{"containers":[{"name":"c"},{"imagePulPolicy":"Never"}]}}`:             {`unknown field "spec.containers[1].imagePulPolicy"; did you mean "imagePullPolicy"?`, ""},
		`{"spec":{"volumes":[{"emptyDri":{}}]}}`:                                        {`unknown field "spec.volumes[0].emptyDri"; did you mean "emptyDir"?`, ""}, // of an embedded type
		`{"spec":{"Containers":[]},"gardening":1}`:                                      {`unknown field "spec.Containers"; did you mean "containers"?; unknown field "gardening"`, ""},
		`{"metadata":{"labels":{"a.b/c[0].d":1}}}`:                                      {"", "metadata.labels.a.b/c[0].d: json: cannot unmarshal number"},
		`{"spec":{"containers":[{},{"resources":{"limits":{"memory":"1GB"}}}]}}`:        {"", "spec.containers[1].resources.limits.memory: quantities must match the regular expression"},
		`{"spec":{"containers":{"name":"c"}}}`:                                          {"", "spec.containers: json: cannot unmarshal object"},
		`{"spec":{"initContainers":[],"terminationGracePeriodSeconds":"soon"}}`:         {"", "spec.terminationGracePeriodSeconds: json: cannot unmarshal string"},
		`{"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":{"number":1}}}}]}}`: {"", "spec.containers[0].livenessProbe.httpGet.port"},
		`[1]`: {"", "json: cannot unmarshal array"},
		`{"`:  {"", "unexpected end of JSON input"},
	} {
		unknown, err := Decode([]byte(doc), &corev1.Pod{})
		for i, u := range unknown {
			unknown[i] = errors.New(u.Error() + Hint(u, corev1.Pod{}))
		}
		if got := strings.ReplaceAll(text(errors.Join(unknown...)), "\n", "; "); got != c.unknown {
			t.Errorf("%s: unknown %q, want %q", doc, got, c.unknown)
		}
		if got := text(err); !strings.HasPrefix(got, c.err) || c.err == "" && got != "" {
			t.Errorf("%s: %q, want %q", doc, got, c.err)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzDecode: no document makes it fail otherwise than by an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1x"}}}],"x.y[0]":1}}`))
	f.Fuzz(func(_ *testing.T, b []byte) {
		unknown, _ := Decode(b, &corev1.Pod{})
		for _, u := range unknown {
			Hint(u, corev1.Pod{})
		}
	})
}

func TestMoreDocuments(t *testing.T) {
	for file, want := range map[string]bool{
		"": false, "a: 1\n": false, "---\na: 1\n": false, "# x\n---\n\na: 1\n---\n": false, "%YAML 1.2\n---\na: 1\n...\n---\n# the end\n": false,
		"a: 1\n---\nb: 2\n": true, "---\na: 1\n--- {b: 2}\n": true, "a: 1\r\n---\r\nb: 2": true, "a: |\n  ---\n  b\n": false, "a: 1\n---b: 2\n": false,
	} {
		if got := MoreDocuments([]byte(file)); got != want {
			t.Errorf("%q: %v", file, got)
		}
	}
}
