package kubelet

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestStaticPod(t *testing.T) {
	p, ignored, err := decodeStatic([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: etcd}\nspec: {containers: [{name: c, image: x}]}\n"), "/m/etcd.yaml", "N1")
	if err != nil || len(ignored) > 0 {
		t.Fatal(ignored, err)
	}
	if p.Name != "etcd-n1" || p.Namespace != "default" || p.UID == "" || !isStatic(p) || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%+v", p)
	}
}

// TestWrongManifests: each mistake is named with its field, and what is ignored is too.
func TestWrongManifests(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
	const spec = "spec: {containers: [{name: c, image: x}]}\n"
	for name, c := range map[string]struct{ text, err, ignored string }{
		"good":              {head + spec, "", ""},
		"no YAML":           {"kind: Pod\nmetadata: {na", "couldn't parse as pod(yaml: ", ""},
		"empty":             {"", "couldn't parse as pod(Object 'Kind' is missing), please check config file", ""},
		"no kind":           {"apiVersion: v1\nmetadata: {name: p}\n" + spec, "Object 'Kind' is missing", ""},
		"no version":        {"kind: Pod\nmetadata: {name: p}\n" + spec, "couldn't parse as pod(Object 'apiVersion' is missing; it has to be v1), please check", ""},
		"another version":   {strings.Replace(head, "v1", "v2", 1) + spec, `no kind "Pod" is registered for version "v2"; it has to be v1`, ""},
		"another kind":      {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\n", `invalid pod: it is of the kind "Deployment" of version "apps/v1"`, ""},
		"no name":           {"apiVersion: v1\nkind: Pod\n" + spec, "invalid pod: name is needed for the pod (metadata.name)", ""},
		"no containers":     {head + "spec: {}\n", "invalid pod: spec.containers: Required value", ""},
		"a bad quantity":    {head + "spec: {containers: [{name: c, image: x, resources: {limits: {memory: 1GB}}}]}\n", "couldn't parse as pod(spec.containers[0].resources.limits.memory: quantities must match the regular expression", ""},
		"a wrong type":      {head + "spec: {containers: {name: c}}\n", "couldn't parse as pod(spec.containers: json: cannot unmarshal object", ""},
		"a misspelt field":  {head + "spec: {containers: [{name: c, image: x, imagePulPolicy: Never}]}\n", "", `unknown field "spec.containers[0].imagePulPolicy"; did you mean "imagePullPolicy"?`},
		"another case":      {head + spec + "Spec: {}\n", "", `unknown field "Spec"; did you mean "spec"?`},
		"a field twice":     {head + spec + spec, "", `key "spec" already set in map`},
		"another document":  {head + spec + "---\n" + head + spec, "", "every document but the first: a file is one pod"},
		"only a comment":    {"---\n" + head + spec + "---\n# the end\n", "", ""},
		"spaces and a mark": {"\n---\n" + head + spec, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, ignored, err := decodeStatic([]byte(c.text), "/m/p.yaml", "n")
			if got := fmt.Sprint(err); c.err == "" && (err != nil || p == nil) || !strings.Contains(got, c.err) {
				t.Errorf("%v; want %q", err, c.err)
			}
			if got := strings.Join(ignored, "; "); c.ignored == "" && got != "" || !strings.Contains(got, c.ignored) {
				t.Errorf("ignored: %q, want %q", got, c.ignored)
			}
		})
	}
}

// TestManifestsAreReportedOnce: a wrong one by an event of its Node, what is ignored by the log,
// for each content once; the URL, which may have a password, is not in the event.
func TestManifestsAreReportedOnce(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	dir := t.TempDir()
	bad, odd := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "odd.yaml")
	remote := &atomic.Pointer[[]manifestFile]{}
	remote.Store(&[]manifestFile{{path: "http://user:secret@h/#0", err: fmt.Errorf("wrong")}})
	var events []string
	st := &staticPods{dir: dir, remote: remote, failed: func(what string) { events = append(events, what) }}
	read := func() {
		for range 3 {
			if _, err := st.read("n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, bad, "kind: Pod")
	write(t, odd, "apiVersion: v1\nkind: Pod\nmetadata: {name: odd}\nspec: {containers: [{name: c, image: x}], hostNetwrok: true}\n")
	read()
	write(t, bad, "apiVersion: v1\nkind: Pod")
	read()
	want := []string{
		"Could not process manifest file " + bad + ": couldn't parse as pod(Object 'apiVersion' is missing; it has to be v1), please check config file; leave out static pod",
		"Could not process manifest file of staticPodURL (--manifest-url): wrong; leave out static pod",
		"Could not process manifest file " + bad + ": invalid pod: name is needed for the pod (metadata.name); leave out static pod",
	}
	if !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	if got := log.String(); strings.Count(got, "a part of a manifest is ignored") != 1 || !strings.Contains(got, `hostNetwrok\"; did you mean \"hostNetwork\"?`) {
		t.Errorf("logged:\n%s", got)
	}
}

// A manifest of a static pod is refused, or makes a pod that has what the API
// server would have given it.
func FuzzManifest(f *testing.F) {
	f.Add([]byte("kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i, livenessProbe: {httpGet: {port: 1}}, lifecycle: {}}], volumes: [{name: v, hostPath: {path: /}}, {name: w}]}\n"))
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: u, namespace: n}\nspec: {initContainers: [{}], containers: [{resources: {limits: {cpu: 1}}, ports: [{}]}], securityContext: null}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, _, err := decodeStatic(data, "/p", "n")
		if err != nil {
			return
		}
		if p.Name == "" || p.Namespace == "" || p.UID == "" || p.Spec.NodeName != "n" || p.Spec.RestartPolicy == "" || p.Spec.TerminationGracePeriodSeconds == nil {
			t.Fatalf("%q makes %+v", data, p)
		}
	})
}
