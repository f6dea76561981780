package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// ServiceAccountTokens signs and verifies the tokens of service accounts
// (KEP-1205, bound tokens).
type ServiceAccountTokens struct {
	issuer    string
	audiences []string
	signer    jose.Signer
	keys      []jose.JSONWebKey
	cache     *watchcache.Cache

	mu    sync.Mutex
	known map[[32]byte]*claims // signatures already verified
}

const knownTokens = 4096

// claims are a token's content, upstream's names.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount ref    `json:"serviceaccount"`
		Pod            *ref   `json:"pod,omitempty"`
		Secret         *ref   `json:"secret,omitempty"`
		Node           *ref   `json:"node,omitempty"`
		WarnAfter      *int64 `json:"warnafter,omitempty"`
	} `json:"kubernetes.io"`
}

type ref struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// NewServiceAccountTokens signs with key, verifies with its public half and
// with others, and issues for audience unless a request names another.
func NewServiceAccountTokens(issuer string, key crypto.Signer, others []crypto.PublicKey, cache *watchcache.Cache) (*ServiceAccountTokens, error) {
	t := &ServiceAccountTokens{issuer: issuer, audiences: []string{issuer}, cache: cache, known: map[[32]byte]*claims{}}
	for _, pub := range append([]crypto.PublicKey{key.Public()}, others...) {
		id, alg, err := keyID(pub)
		if err != nil {
			return nil, err
		}
		t.keys = append(t.keys, jose.JSONWebKey{Key: pub, KeyID: id, Algorithm: string(alg), Use: "sig"})
	}
	var err error
	t.signer, err = jose.NewSigner(jose.SigningKey{
		Algorithm: jose.SignatureAlgorithm(t.keys[0].Algorithm),
		Key:       jose.JSONWebKey{Key: key, KeyID: t.keys[0].KeyID},
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("service-account signing key: %w", err)
	}
	return t, nil
}

// keyID is upstream's: the hash of the key's DER form.
func keyID(pub crypto.PublicKey) (string, jose.SignatureAlgorithm, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", "", fmt.Errorf("service-account key: %w", err)
	}
	sum := sha256.Sum256(der)
	id := base64.RawURLEncoding.EncodeToString(sum[:])
	switch k := pub.(type) {
	case *rsa.PublicKey:
		return id, jose.RS256, nil
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize {
		case 256:
			return id, jose.ES256, nil
		case 384:
			return id, jose.ES384, nil
		}
	}
	return "", "", fmt.Errorf("service-account key: %T is neither RSA nor ECDSA P-256 or P-384", pub)
}

// Audiences are those the API server itself answers to.
func (t *ServiceAccountTokens) Audiences() []string { return t.audiences }

// Issue signs a token for sa that ends after seconds or with bound, which may
// be nil or a Pod, Secret or Node; node is the pod's node, if known.
func (t *ServiceAccountTokens) Issue(sa *corev1.ServiceAccount, audiences []string, seconds int64, bound registry.Object, node *corev1.Node) (token string, expires time.Time, err error) {
	now := time.Now()
	expires = now.Add(time.Duration(seconds) * time.Second)
	if len(audiences) == 0 {
		audiences = t.audiences
	}
	var c claims
	c.Claims = jwt.Claims{
		Issuer: t.issuer, Subject: serviceaccount.MakeUsername(sa.Namespace, sa.Name), Audience: audiences,
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(expires),
		ID: uuid.NewString(),
	}
	c.Kubernetes.Namespace = sa.Namespace
	c.Kubernetes.ServiceAccount = ref{sa.Name, string(sa.UID)}
	switch o := bound.(type) {
	case *corev1.Pod:
		c.Kubernetes.Pod = &ref{o.Name, string(o.UID)}
		if node != nil {
			c.Kubernetes.Node = &ref{node.Name, string(node.UID)}
		}
	case *corev1.Secret:
		c.Kubernetes.Secret = &ref{o.Name, string(o.UID)}
	case *corev1.Node:
		c.Kubernetes.Node = &ref{o.Name, string(o.UID)}
	}
	token, err = jwt.Signed(t.signer).Claims(c).Serialize()
	if err != nil {
		return "", expires, fmt.Errorf("sign token of %s/%s: %w", sa.Namespace, sa.Name, err)
	}
	return token, expires, nil
}

// algorithms accepted in a token's header.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384}

var errBadToken = errors.New("invalid bearer token")

// AuthenticateToken checks signature, time, audience, and that what the token
// is bound to still lives.
func (t *ServiceAccountTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !t.ours(token) {
		return nil, false, nil
	}
	c, err := t.verify(token)
	if err != nil {
		return nil, false, err
	}
	now := time.Now()
	if err := c.Claims.ValidateWithLeeway(jwt.Expected{Issuer: t.issuer, Time: now}, 0); err != nil {
		return nil, false, fmt.Errorf("service-account token: %w", err)
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = t.audiences
	}
	auds := authenticator.Audiences(c.Audience).Intersect(wanted)
	if len(auds) == 0 {
		return nil, false, fmt.Errorf("service-account token: audiences %q are not among %q", c.Audience, wanted)
	}
	info, err := t.alive(c, now)
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: info.UserInfo(), Audiences: auds}, true, nil
}

// ours looks at the issuer without believing it, so that another
// authenticator may have the token.
func (t *ServiceAccountTokens) ours(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	return json.Unmarshal(payload, &c) == nil && c.Issuer == t.issuer
}

func (t *ServiceAccountTokens) verify(token string) (*claims, error) {
	sum := sha256.Sum256([]byte(token))
	t.mu.Lock()
	c := t.known[sum]
	t.mu.Unlock()
	if c != nil {
		return c, nil
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, errBadToken
	}
	for _, key := range t.keys {
		if id := parsed.Headers[0].KeyID; id != "" && id != key.KeyID {
			continue
		}
		c := &claims{}
		if err := parsed.Claims(key.Key, c); err == nil {
			t.mu.Lock()
			if len(t.known) >= knownTokens {
				clear(t.known)
			}
			t.known[sum] = c
			t.mu.Unlock()
			return c, nil
		}
	}
	return nil, errBadToken
}

// binding is an object that a token lives and dies with.
type binding struct{ resource, key, uid string }

// alive checks the objects that a token names: the account and what the token
// is bound to must exist, be the same as when it was issued, and not be on
// their way out for more than a minute.
func (t *ServiceAccountTokens) alive(c *claims, now time.Time) (*serviceaccount.ServiceAccountInfo, error) {
	k := c.Kubernetes
	if c.Subject != serviceaccount.MakeUsername(k.Namespace, k.ServiceAccount.Name) {
		return nil, errBadToken
	}
	info := &serviceaccount.ServiceAccountInfo{
		Namespace: k.Namespace, Name: k.ServiceAccount.Name, UID: k.ServiceAccount.UID,
	}
	if c.ID != "" {
		info.CredentialID = "JTI=" + c.ID
	}
	bound := []binding{{"serviceaccounts", k.Namespace + "/" + k.ServiceAccount.Name, k.ServiceAccount.UID}}
	if k.Pod != nil {
		bound = append(bound, binding{"pods", k.Namespace + "/" + k.Pod.Name, k.Pod.UID})
		info.PodName, info.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Secret != nil {
		bound = append(bound, binding{"secrets", k.Namespace + "/" + k.Secret.Name, k.Secret.UID})
	}
	if k.Node != nil {
		info.NodeName, info.NodeUID = k.Node.Name, k.Node.UID
		if k.Pod == nil { // beside a pod the node is only told, as upstream does
			bound = append(bound, binding{"nodes", k.Node.Name, k.Node.UID})
		}
	}
	for _, b := range bound {
		if strings.Count(b.key, "/") > 1 {
			return nil, errBadToken
		}
		o, ok := watchcache.Read[registry.Object](t.cache.Resource(corev1.SchemeGroupVersion.WithResource(b.resource)), b.key)
		switch {
		case !ok:
			return nil, fmt.Errorf("service-account token: %s %s is gone", b.resource, b.key)
		case string(o.GetUID()) != b.uid:
			return nil, fmt.Errorf("service-account token: %s %s has been replaced", b.resource, b.key)
		case o.GetDeletionTimestamp() != nil && o.GetDeletionTimestamp().Add(time.Minute).Before(now):
			return nil, fmt.Errorf("service-account token: %s %s is being deleted", b.resource, b.key)
		}
	}
	return info, nil
}

// Discovery is the document at /.well-known/openid-configuration.
func (t *ServiceAccountTokens) Discovery(jwksURI string) []byte {
	algs := []string{}
	for _, k := range t.keys {
		if !slices.Contains(algs, k.Algorithm) {
			algs = append(algs, k.Algorithm)
		}
	}
	b, err := json.Marshal(map[string]any{
		"issuer": t.issuer, "jwks_uri": jwksURI, "response_types_supported": []string{"id_token"},
		"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": algs,
	})
	if err != nil {
		panic(err) // strings always encode
	}
	return b
}

// JWKS is the document at /openid/v1/jwks: the public keys.
func (t *ServiceAccountTokens) JWKS() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: t.keys})
}

// MinTokenSeconds and MaxTokenSeconds bound what a TokenRequest may ask for.
const (
	MinTokenSeconds = 10 * 60
	MaxTokenSeconds = 1 << 32
)

// DefaultTokenSeconds is what a TokenRequest gets that asks for nothing.
const DefaultTokenSeconds = 3600
