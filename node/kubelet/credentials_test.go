package kubelet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCredentials(t *testing.T) {
	s := &corev1.Secret{Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(
		`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"reg.io:5000/team":{"username":"a","password":"b"},"*.corp.io":{"username":"c"},"both.io":{"username":"a","password":"b","auth":"dTpw"},"bad.io":{"username":"a","password":"b","auth":"%"}}}`)}}
	for image, want := range map[string]string{
		"busybox": "u", "docker.io/library/x:1": "u", "x.corp.io:5000/y": "", "reg.io:5000/team/x": "a", "reg.io:5000/other/x": "", "x.corp.io/y:z": "c", "a.b.corp.io/y": "", "both.io/x": "u", "bad.io/x": "a",
	} {
		user := ""
		if got := credentials(repository(image), []*corev1.Secret{s}); len(got) > 0 {
			if user = got[0].Username; got[0].ServerAddress != "" {
				t.Errorf("%s: the runtime is told of %s, which containerd takes for a URL", image, got[0].ServerAddress)
			}
		}
		if user != want {
			t.Errorf("%s: %q, want %q", image, user, want)
		}
	}
}

// Of what Secrets hold as a configuration of Docker's, an image's pull gets only
// what is filed under its registry.
func FuzzCredentials(f *testing.F) {
	f.Add("registry.example.com/a/b:v1", false, []byte(`{"auths":{"https://registry.example.com/v1/":{"auth":"dTpw"},"*.example.com":{"username":"u","password":"p"},"evil.test":{"auth":"%"}}}`))
	f.Add("busybox@sha256:00", true, []byte(`{"https://index.docker.io/v1/":{"identitytoken":"t"},"[":{},"":{}}`))
	f.Add("localhost:5000/x", false, []byte(`{"auths":null}`))
	f.Fuzz(func(t *testing.T, image string, old bool, config []byte) {
		key := corev1.DockerConfigJsonKey
		if old {
			key = corev1.DockerConfigKey
		}
		for _, c := range credentials(repository(image), []*corev1.Secret{{Data: map[string][]byte{key: config}}}) {
			host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(c.entry, "https://"), "http://"), "/")
			if host != "" && !strings.ContainsAny(host, `*?[\`) && host != "index.docker.io" && host != "docker.io" && !strings.HasPrefix(image, host) {
				t.Fatalf("%q gets what is filed under %q", image, c.entry)
			}
		}
	})
}
