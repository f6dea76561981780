package credentialprovider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"golang.org/x/sync/singleflight"
)

// maxCached bounds the answers of one plugin that are remembered: pods name images.
const maxCached = 1024

// Config is what the plugins are made of.
type Config struct {
	// File is that of a CredentialProviderConfig, or a directory of such files. Required.
	File string
	// BinDir holds the programs. Required.
	BinDir string
	// Account reads a service account. Required.
	Account func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	// Token requests a token of a service account. Required.
	Token func(ctx context.Context, namespace, name string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// Ran is told of each run of a program. Required.
	Ran func(name string, took time.Duration, failed bool)
}

// Plugins are those of a node.
type Plugins struct {
	hash string
	all  []*plugin
}

// ErrProgram is what an error of New is where the configuration is right, and a program or
// their directory is not there.
var ErrProgram = errors.New("no program")

type programError struct{ error }

// Is says that the error is ErrProgram.
func (programError) Is(target error) bool { return target == ErrProgram }

// Unwrap is why.
func (e programError) Unwrap() error { return e.error }

// New reads the configuration and runs nothing.
func New(c Config) (*Plugins, error) {
	if _, err := os.Stat(c.BinDir); errors.Is(err, os.ErrNotExist) {
		return nil, programError{fmt.Errorf("plugin binary directory %s did not exist", c.BinDir)}
	} else if err != nil {
		return nil, programError{fmt.Errorf("error inspecting binary directory %s: %w", c.BinDir, err)}
	}
	config, hash, err := readConfig(c.File)
	if err != nil {
		return nil, err
	}
	if errs := validate(config); len(errs) > 0 {
		return nil, fmt.Errorf("failed to validate credential provider config: %w", errs.ToAggregate())
	}
	p := &Plugins{hash: hash}
	for i := range config.Providers {
		of := &config.Providers[i]
		// With an absolute path, so that no other directory is looked in.
		path, err := filepath.Abs(filepath.Join(c.BinDir, of.Name))
		if err != nil {
			return nil, err
		}
		if _, err := exec.LookPath(path); errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return nil, programError{fmt.Errorf("plugin binary executable %s did not exist", path)}
		} else if err != nil {
			return nil, programError{fmt.Errorf("error inspecting binary executable %s: %w", path, err)}
		}
		one := &plugin{
			of: of, cached: cache{most: maxCached}, account: c.Account,
			program: &program{name: of.Name, path: path, apiVersion: of.APIVersion, args: of.Args, env: of.Env, slots: make(chan struct{}, maxRuns), ran: c.Ran},
		}
		if of.TokenAttributes != nil {
			one.tokens = &tokens{audience: of.TokenAttributes.ServiceAccountTokenAudience, request: c.Token, cached: cache{most: maxCached}}
		}
		p.all = append(p.all, one)
	}
	return p, nil
}

// Hash is that of the configuration.
func (p *Plugins) Hash() string { return p.hash }

// A Request is for which image, by its full name without tag and digest, and for which pod.
type Request struct {
	Image                   string
	Namespace, Pod, Account string
	PodUID                  types.UID
}

// An Account is the service account whose token got credentials.
type Account struct{ UID, Namespace, Name string }

// Credentials are what registries that Pattern matches may be asked with.
type Credentials struct {
	Pattern, Username, Password string
	// Account is nil where they are any pod's of the node.
	Account *Account
}

// Lookup asks the plugins that the image is meant for. One that fails is logged and
// leaves the others.
func (p *Plugins) Lookup(ctx context.Context, r Request) (out []Credentials) {
	for _, one := range p.all {
		creds, err := one.lookup(ctx, r)
		if err != nil && ctx.Err() == nil {
			slog.Error("Failed to provide credentials for image", "provider", one.of.Name, "image", r.Image,
				"pod", r.Namespace+"/"+r.Pod, "serviceAccount", r.Account, "err", err)
		}
		out = append(out, creds...)
	}
	return out
}

// A plugin is a program and what it answered.
type plugin struct {
	of      *kubeletconfig.CredentialProvider
	program *program
	tokens  *tokens // nil: the program gets none
	account func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	runs    singleflight.Group

	mu     sync.Mutex
	cached cache
}

// An identity is for whom a program is asked: nobody, or a service account.
type identity struct {
	account     *Account
	token       string
	annotations map[string]string
	// key tells apart those whose answers may differ, run those whose runs may.
	key, run string
}

func (p *plugin) lookup(ctx context.Context, r Request) ([]Credentials, error) {
	if !p.matches(r.Image) {
		return nil, nil
	}
	who, ok, err := p.identify(ctx, r)
	if err != nil || !ok {
		return nil, err
	}
	if have, ok := p.remembered(r.Image, who); ok {
		return have, nil
	}
	run := func() (any, error, bool) {
		return p.runs.Do(key(r.Image, who.key, who.run), func() (any, error) {
			if have, ok := p.remembered(r.Image, who); ok { // by a run that has just ended
				return have, nil
			}
			answer, err := p.program.run(ctx, &api.CredentialProviderRequest{Image: r.Image, ServiceAccountToken: who.token, ServiceAccountAnnotations: who.annotations})
			if err != nil {
				return nil, fmt.Errorf("failed to get credential from external registry credential provider: %w", err)
			}
			return p.answered(r.Image, who, answer)
		})
	}
	got, err, _ := run()
	for errors.Is(err, context.Canceled) && ctx.Err() == nil { // it was the run of another, who is wanted no more
		got, err, _ = run()
	}
	if err != nil {
		return nil, err
	}
	return got.([]Credentials), nil
}

// remembered are the credentials that an earlier answer has for an image.
func (p *plugin) remembered(image string, who identity) ([]Credentials, bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, scope := range []string{image, registryOf(image), everywhere} {
		if have, ok := p.cached.get(key(scope, who.key), now); ok {
			return have.([]Credentials), true
		}
	}
	return nil, false
}

func (p *plugin) matches(image string) bool {
	for _, m := range p.of.MatchImages {
		if Matches(m, image) {
			return true
		}
	}
	return false
}

// identify finds for whom the program is asked. It is not asked at all where it wants a
// service account that the pod does not have, or annotations that this one does not have.
func (p *plugin) identify(ctx context.Context, r Request) (who identity, ok bool, err error) {
	t := p.of.TokenAttributes
	if t == nil || r.Account == "" {
		return who, t == nil || !*t.RequireServiceAccount, nil
	}
	sa, err := p.account(ctx, r.Namespace, r.Account)
	if err != nil {
		return who, false, fmt.Errorf("failed to get service account: %w", err)
	}
	who.annotations = map[string]string{}
	for _, k := range t.RequiredServiceAccountAnnotationKeys {
		v, ok := sa.Annotations[k]
		if !ok {
			slog.Debug("a service account lacks an annotation that a credential provider requires", "provider", p.of.Name, "annotation", k, "serviceAccount", r.Namespace+"/"+r.Account)
			return who, false, nil
		}
		who.annotations[k] = v
	}
	for _, k := range t.OptionalServiceAccountAnnotationKeys {
		if v, ok := sa.Annotations[k]; ok {
			who.annotations[k] = v
		}
	}
	if who.token, err = p.tokens.of(ctx, r, sa.UID); err != nil {
		return who, false, fmt.Errorf("failed to get service account token: %w", err)
	}
	sum := sha256.Sum256([]byte(who.token))
	annotations, err := json.Marshal(who.annotations) // in the order of the keys
	if err != nil {
		return who, false, err
	}
	who.account = &Account{UID: string(sa.UID), Namespace: r.Namespace, Name: r.Account}
	who.key = key(r.Namespace, r.Account, string(sa.UID), string(annotations))
	who.run = key(hex.EncodeToString(sum[:]), string(annotations))
	if t.CacheType == kubeletconfig.TokenServiceAccountTokenCacheType {
		who.key = key(who.key, hex.EncodeToString(sum[:]))
	}
	return who, true, nil
}

// answered are the credentials of an answer, which is remembered as it says.
func (p *plugin) answered(image string, who identity, r *api.CredentialProviderResponse) ([]Credentials, error) {
	out := make([]Credentials, 0, len(r.Auth))
	for pattern, a := range r.Auth {
		if who.token != "" && a.Password == who.token && p.of.TokenAttributes.CacheType != kubeletconfig.TokenServiceAccountTokenCacheType {
			return nil, errors.New("credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'")
		}
		out = append(out, Credentials{Pattern: pattern, Username: a.Username, Password: a.Password, Account: who.account})
	}
	lasts := p.of.DefaultCacheDuration.Duration
	if r.CacheDuration != nil {
		lasts = r.CacheDuration.Duration
	}
	if lasts <= 0 {
		return out, nil
	}
	scope := everywhere
	switch r.CacheKeyType {
	case api.ImagePluginCacheKeyType:
		scope = image
	case api.RegistryPluginCacheKeyType:
		scope = registryOf(image)
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cached.put(key(scope, who.key), out, now.Add(lasts), now)
	return out, nil
}

// everywhere is the scope of an answer for all images; no image is named like that.
const everywhere = "<global>"

// registryOf is the host of an image's name, with its port.
func registryOf(image string) string {
	host, _, _ := strings.Cut(image, "/")
	return host
}

// key joins parts so that different ones never make the same key.
func key(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%d:%s", len(p), p)
	}
	return b.String()
}
