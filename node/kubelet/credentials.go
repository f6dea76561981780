package kubelet

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/credentialprovider"
	"knarr/node/kubelet/pullrecords"
)

// A credential is what an image can be pulled with, and where it is from: a secret, a
// service account for whose token a plugin gave it, or else the node, which all pods are
// free to use. The runtime is not told what it is filed under, as upstream's kubelet does
// not: containerd takes it for a URL, so that it would give the registry nothing of what
// is filed under reg.io or localhost:5000.
type credential struct {
	*cri.AuthConfig
	entry   string
	secret  *pullrecords.Secret
	account *pullrecords.ServiceAccount
}

// used says with which credentials an image was pulled.
func (c credential) used() pullrecords.Credentials {
	switch {
	case c.secret != nil:
		return pullrecords.Credentials{KubernetesSecrets: []pullrecords.Secret{*c.secret}}
	case c.account != nil:
		return pullrecords.Credentials{KubernetesServiceAccounts: []pullrecords.ServiceAccount{*c.account}}
	}
	return pullrecords.Credentials{NodePodsAccessible: true}
}

// pullCredentials are those that are meant for the image: of the pod's secrets, of the
// node's configuration of Docker, of the plugins, in this order. One secret that cannot be
// read is an error, as upstream has it, whatever the others hold.
func (k *Kubelet) pullCredentials(ctx context.Context, pod *corev1.Pod, image string) ([]credential, error) {
	var secrets []*corev1.Secret
	for _, r := range pod.Spec.ImagePullSecrets {
		if r.Name == "" {
			continue
		}
		if s, err := k.objects.Secret(pod.Namespace, r.Name); err == nil { // else tellMissingSecrets says so
			secrets = append(secrets, s)
		}
	}
	repo := repository(image)
	out, err := credentials(repo, secrets)
	if err != nil {
		return nil, err
	}
	out = append(out, k.nodeCredentials.of(repo, k.cfg.RootDir)...)
	if k.plugins == nil {
		return out, nil
	}
	var given []credential
	for _, c := range k.plugins.Lookup(ctx, credentialprovider.Request{
		Image: repo, Namespace: pod.Namespace, Pod: pod.Name, PodUID: pod.UID, Account: pod.Spec.ServiceAccountName,
	}) {
		if !matches(c.Pattern, repo) {
			continue
		}
		one := credential{AuthConfig: &cri.AuthConfig{Username: c.Username, Password: c.Password}, entry: c.Pattern}
		if a := c.Account; a != nil {
			one.account = &pullrecords.ServiceAccount{UID: a.UID, Namespace: a.Namespace, Name: a.Name}
		}
		given = append(given, one)
	}
	return append(out, longestFirst(given)...), nil
}

// secretsRead is after what time it is looked again whether secrets have been read.
const secretsRead = time.Second

// tellMissingSecrets tells of secrets to pull with that are not there, whether anything is
// pulled or not: at each look at the pod, of which upstream has one in each sync period, and
// not more than once a second. It says when to look again.
func (w *worker) tellMissingSecrets() time.Duration {
	var missing []string
	again := never
	for _, r := range w.pod.Spec.ImagePullSecrets {
		if r.Name == "" {
			continue
		}
		switch lacks, known := w.k.objects.LacksSecret(w.pod.Namespace, r.Name); {
		case !known:
			again = secretsRead
		case lacks:
			missing = append(missing, r.Name)
		}
	}
	if len(missing) == 0 {
		return again
	}
	if time.Since(w.secretsEvent) >= time.Second {
		w.secretsEvent = time.Now()
		w.k.events.Eventf(w.eventRef(), corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
	}
	return min(again, w.k.cfg.Settings.SyncFrequency.Duration)
}

// presented is what a pod's credentials show of it.
func presented(all []credential) (p pullrecords.Presented) {
	for _, c := range all {
		switch {
		case c.secret != nil:
			p.Secrets = append(p.Secrets, *c.secret)
		case c.account != nil:
			p.ServiceAccount = c.account // a pod has one
		}
	}
	return p
}

// repository is an image's full name without tag and digest.
func repository(image string) string {
	n, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return n.Name()
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Email         string `json:"email"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

var (
	errAuthField = errors.New("unable to parse auth field, must be formatted as base64(username:password)")
	errAuthJSON  = errors.New("error occurred while trying to unmarshal json")
)

// UnmarshalJSON takes name and password from the field auth, if there is one, before those
// beside it.
func (a *dockerAuth) UnmarshalJSON(b []byte) error {
	type fields dockerAuth
	if err := json.Unmarshal(b, (*fields)(a)); err != nil || a.Auth == "" {
		return err
	}
	coding := base64.RawStdEncoding
	if strings.HasSuffix(strings.TrimSpace(a.Auth), "=") {
		coding = base64.StdEncoding
	}
	raw, err := coding.DecodeString(a.Auth)
	user, password, ok := strings.Cut(string(raw), ":")
	if err != nil || !ok {
		return errAuthField
	}
	a.Username, a.Password = user, password
	return nil
}

// parseAuth parses what has credentials into into. The error says nothing of them, as one of
// json's may.
func parseAuth(b []byte, into any) error {
	err := json.Unmarshal(b, into)
	if err == nil || errors.Is(err, errAuthField) {
		return err
	}
	return errAuthJSON
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

// credentials picks from secrets what is meant for an image's repository.
func credentials(repo string, secrets []*corev1.Secret) (out []credential, err error) {
	for _, s := range secrets {
		var f dockerConfig
		if b := s.Data[corev1.DockerConfigJsonKey]; s.Type == corev1.SecretTypeDockerConfigJson && len(b) > 0 {
			err = parseAuth(b, &f)
		} else if b := s.Data[corev1.DockerConfigKey]; s.Type == corev1.SecretTypeDockercfg && len(b) > 0 {
			err = parseAuth(b, &f.Auths)
		}
		if err != nil {
			return nil, fmt.Errorf("image pull secret %s/%s: %w", s.Namespace, s.Name, err)
		}
		for _, c := range pick(repo, f.Auths) {
			c.secret = &pullrecords.Secret{UID: string(s.UID), Namespace: s.Namespace, Name: s.Name, CredentialHash: c.hash}
			out = append(out, c.credential)
		}
	}
	return longestFirst(out), nil
}

type dockerConfig struct {
	Auths map[string]dockerAuth `json:"auths"`
}

type hashed struct {
	credential
	hash string
}

// pick is what a configuration of Docker's has for a repository.
func pick(repo string, all map[string]dockerAuth) (out []hashed) {
	for _, registry := range slices.Sorted(maps.Keys(all)) {
		if !matches(registry, repo) {
			continue
		}
		a := all[registry]
		auth := &cri.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken}
		out = append(out, hashed{credential{AuthConfig: auth, entry: registry}, a.hash()})
	}
	return out
}

// longestFirst has what is filed under more of an image's name before what is filed
// under less of it.
func longestFirst(all []credential) []credential {
	slices.SortStableFunc(all, func(a, b credential) int {
		return strings.Compare(registryKey(b.entry), registryKey(a.entry))
	})
	return all
}

// registryKey is what credentials are filed under, without scheme and version.
func registryKey(entry string) string {
	entry = strings.TrimPrefix(strings.TrimPrefix(entry, "https://"), "http://")
	host, path, _ := strings.Cut(entry, "/")
	for _, v := range []string{"v1", "v2"} {
		if path == v {
			path = ""
		}
		path = strings.TrimPrefix(path, v+"/")
	}
	if host == "index.docker.io" {
		host = "docker.io"
	}
	if path == "" {
		return host
	}
	return host + "/" + path
}

// matches says whether credentials filed under entry are for a repository.
func matches(entry, repo string) bool { return credentialprovider.Matches(registryKey(entry), repo) }
