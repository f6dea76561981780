package kubelet

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCredentials(t *testing.T) {
	s := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(
		`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"reg.io:5000/team":{"username":"a","password":"b"},"*.corp.io":{"username":"c"},"both.io":{"username":"a","password":"b","auth":"dTpw"}}}`)}}
	for image, want := range map[string]string{
		"busybox": "u", "docker.io/library/x:1": "u", "x.corp.io:5000/y": "", "reg.io:5000/team/x": "a", "reg.io:5000/other/x": "", "x.corp.io/y:z": "c", "a.b.corp.io/y": "", "both.io/x": "u",
	} {
		user := ""
		got, err := credentials(repository(image), []*corev1.Secret{s})
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > 0 {
			if user = got[0].Username; got[0].ServerAddress != "" {
				t.Errorf("%s: the runtime is told of %s, which containerd takes for a URL", image, got[0].ServerAddress)
			}
		}
		if user != want {
			t.Errorf("%s: %q, want %q", image, user, want)
		}
	}
}

// TestBadPullSecrets: a secret that is no configuration of Docker's fails the pull, whatever
// image its bad part is for, as upstream's kubelet has it, and without a word of what it
// holds. One of another type is no pull secret.
func TestBadPullSecrets(t *testing.T) {
	good := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"reg.io":{"auth":"dTpw"}}}`)}}
	for auth, want := range map[string]error{
		`"c2VjcmV0"`: errAuthField, `"c2V%"`: errAuthField, `" dTpw"`: errAuthField, `"dTpwcA"`: nil, `"dTpwcA=="`: nil, `"dTpwcA="`: errAuthField, `""`: nil, `5`: errAuthJSON,
	} {
		bad := &corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"other.io":{"auth":` + auth + `}}`)}}
		bad.Namespace, bad.Name = "ns", "bad"
		got, err := credentials("reg.io/x", []*corev1.Secret{good, bad})
		if !errors.Is(err, want) || err == nil && len(got) != 1 {
			t.Errorf("%s: %d credentials, %v, want %v", auth, len(got), err, want)
		}
		if err != nil && err.Error() != "image pull secret ns/bad: "+want.Error() {
			t.Errorf("%s: %v", auth, err)
		}
		bad.Type = corev1.SecretTypeOpaque
		if got, err := credentials("reg.io/x", []*corev1.Secret{good, bad}); len(got) != 1 || err != nil {
			t.Errorf("%s of another type: %d credentials, %v", auth, len(got), err)
		}
	}
}

// TestBadPullSecretFailsThePull: in words that name the secret, and nothing is pulled.
func TestBadPullSecretFailsThePull(t *testing.T) {
	n := newNode(t)
	n.start()
	n.pullSecret("bad", "")
	path := "/api/v1/namespaces/ns/secrets/bad"
	n.api.mu.Lock()
	secret := n.api.objects[path]
	secret["data"] = map[string]any{corev1.DockerConfigJsonKey: []byte(`{"auths":{"reg.io":{"auth":"dQ=="}}}`)}
	n.api.put(path, secret, "MODIFIED")
	n.api.mu.Unlock()
	n.api.addPod(user("p", private, "bad", corev1.PullAlways))
	n.until("backing off", n.waits("p", "ImagePullBackOff"))
	want := "image pull secret ns/bad: " + errAuthField.Error()
	if got := n.api.pod("p").Status.ContainerStatuses[0].State.Waiting.Message; !strings.HasSuffix(got, want) {
		t.Errorf("message %q, want %q", got, want)
	}
	if got := n.pulls(); got != 0 {
		t.Errorf("%d pulls", got)
	}
}

// Of what Secrets hold as a configuration of Docker's, an image's pull gets only
// what is filed under its registry.
func FuzzCredentials(f *testing.F) {
	f.Add("registry.example.com/a/b:v1", false, []byte(`{"auths":{"https://registry.example.com/v1/":{"auth":"dTpw"},"*.example.com":{"username":"u","password":"p"},"evil.test":{"auth":"%"}}}`))
	f.Add("busybox@sha256:00", true, []byte(`{"https://index.docker.io/v1/":{"identitytoken":"t"},"[":{},"":{}}`))
	f.Add("localhost:5000/x", false, []byte(`{"auths":null}`))
	f.Fuzz(func(t *testing.T, image string, old bool, config []byte) {
		key, kind := corev1.DockerConfigJsonKey, corev1.SecretTypeDockerConfigJson
		if old {
			key, kind = corev1.DockerConfigKey, corev1.SecretTypeDockercfg
		}
		all, _ := credentials(repository(image), []*corev1.Secret{{Type: kind, Data: map[string][]byte{key: config}}})
		for _, c := range all {
			host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(c.entry, "https://"), "http://"), "/")
			if host != "" && !strings.ContainsAny(host, `*?[\`) && host != "index.docker.io" && host != "docker.io" && !strings.HasPrefix(image, host) {
				t.Fatalf("%q gets what is filed under %q", image, c.entry)
			}
		}
	})
}
