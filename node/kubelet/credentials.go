package kubelet

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/pullrecords"
)

// A credential is what an image can be pulled with, and where it is from.
type credential struct {
	*cri.AuthConfig
	source pullrecords.Secret
}

// pullCredentials are those of the pod's secrets that are meant for the image.
func (k *Kubelet) pullCredentials(pod *corev1.Pod, image string) []credential {
	var secrets []*corev1.Secret
	for _, r := range pod.Spec.ImagePullSecrets {
		if r.Name == "" {
			continue
		}
		if s, err := k.objects.Secret(pod.Namespace, r.Name); err == nil {
			secrets = append(secrets, s)
		}
	}
	return credentials(image, secrets)
}

// sources are where credentials are from.
func sources(all []credential) []pullrecords.Secret {
	out := make([]pullrecords.Secret, len(all))
	for i, c := range all {
		out[i] = c.source
	}
	return out
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Email         string `json:"email"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// hash tells credentials apart as upstream does, whose records then serve both.
func (a dockerAuth) hash() string {
	b, _ := json.Marshal(struct {
		Username      string `json:"username,omitempty"`
		Password      string `json:"password,omitempty"`
		Email         string `json:"email,omitempty"`
		IdentityToken string `json:"identitytoken,omitempty"`
	}{a.Username, a.Password, a.Email, a.IdentityToken})
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// credentials picks from secrets what is meant for the image's registry, the
// longest entries first.
func credentials(image string, secrets []*corev1.Secret) (out []credential) {
	repo := strings.SplitN(image, "@", 2)[0]
	if i := strings.LastIndexByte(repo, ':'); i > strings.LastIndexByte(repo, '/') {
		repo = repo[:i]
	}
	host, rest, ok := strings.Cut(repo, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		host, rest = "docker.io", repo
	}
	for _, s := range secrets {
		var all map[string]dockerAuth
		if b, ok := s.Data[corev1.DockerConfigJsonKey]; ok {
			var f struct {
				Auths map[string]dockerAuth `json:"auths"`
			}
			if json.Unmarshal(b, &f) != nil {
				continue
			}
			all = f.Auths
		} else if b, ok := s.Data[corev1.DockerConfigKey]; ok {
			if json.Unmarshal(b, &all) != nil {
				continue
			}
		}
		for _, registry := range slices.Sorted(maps.Keys(all)) {
			a := all[registry]
			if !matches(registry, host, rest) {
				continue
			}
			if a.Username == "" && a.Auth != "" {
				if raw, err := base64.StdEncoding.DecodeString(a.Auth); err == nil {
					a.Username, a.Password, _ = strings.Cut(string(raw), ":")
				}
			}
			out = append(out, credential{
				&cri.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, ServerAddress: registry},
				pullrecords.Secret{UID: string(s.UID), Namespace: s.Namespace, Name: s.Name, CredentialHash: a.hash()},
			})
		}
	}
	slices.SortStableFunc(out, func(a, b credential) int {
		return strings.Compare(registryKey(b.ServerAddress), registryKey(a.ServerAddress))
	})
	return out
}

// registryKey is what credentials are filed under, without scheme and version.
func registryKey(entry string) string {
	entry = strings.TrimPrefix(strings.TrimPrefix(entry, "https://"), "http://")
	entry = strings.TrimSuffix(entry, "/")
	for _, v := range []string{"/v1", "/v2"} {
		entry = strings.TrimSuffix(entry, v)
	}
	return entry
}

// matches says whether credentials filed under entry are for host and path.
func matches(entry, host, rest string) bool {
	eh, ep, _ := strings.Cut(registryKey(entry), "/")
	if eh == "index.docker.io" {
		eh = "docker.io"
	}
	if ok, _ := path.Match(eh, host); !ok || strings.Count(eh, ".") != strings.Count(host, ".") {
		return false
	}
	return ep == "" || rest == ep || strings.HasPrefix(rest, ep+"/")
}
