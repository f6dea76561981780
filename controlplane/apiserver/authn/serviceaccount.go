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
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// ServiceAccountTokens signs and verifies the tokens of service accounts
// (KEP-1205, bound tokens).
type ServiceAccountTokens struct {
	cfg    TokenConfig
	signer jose.Signer
	keys   []jose.JSONWebKey
	cache  *watchcache.Cache

	mu    sync.Mutex
	known map[[32]byte]*verifiedToken // signatures already verified
}

const knownTokens = 4096

// TokenConfig says how tokens of service accounts are made and believed.
type TokenConfig struct {
	// Key signs them; its public half and Others verify them.
	Key    crypto.Signer
	Others []crypto.PublicKey
	// Issuers are believed; the first of them is this server's name.
	Issuers []string
	// Audiences are those that the API server answers to, and what tokens are
	// for unless a request says otherwise. Default: the issuers.
	Audiences []string
	// MaxSeconds is the longest time that a token may be asked for. Default: any.
	MaxSeconds int64
	// Exact keeps pods' tokens from being good for longer than was asked.
	Exact bool
}

// claims are a token's content, upstream's names.
type claims struct {
	jwt.Claims
	Audience   audience `json:"aud"`
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount ref    `json:"serviceaccount"`
		Pod            *ref   `json:"pod,omitempty"`
		Secret         *ref   `json:"secret,omitempty"`
		Node           *ref   `json:"node,omitempty"`
		WarnAfter      *int64 `json:"warnafter,omitempty"`
	} `json:"kubernetes.io"`
}

// audience is a list even of one, as upstream writes it; one alone is read too.
type audience []string

func (a *audience) UnmarshalJSON(b []byte) error { return (*jwt.Audience)(a).UnmarshalJSON(b) }

// verifiedToken is a token whose signature was good, and who it makes the
// bearer while all that it is bound to lives.
type verifiedToken struct {
	claims
	resp   *authenticator.Response // for the server's own audiences
	legacy *legacyClaims           // of a token in a Secret, which has no others
}

type ref struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// NewServiceAccountTokens makes tokens as c says, of accounts in cache.
func NewServiceAccountTokens(c TokenConfig, cache *watchcache.Cache) (*ServiceAccountTokens, error) {
	if len(c.Audiences) == 0 {
		c.Audiences = c.Issuers
	}
	t := &ServiceAccountTokens{cfg: c, cache: cache, known: map[[32]byte]*verifiedToken{}}
	for _, pub := range append([]crypto.PublicKey{c.Key.Public()}, c.Others...) {
		id, alg, err := keyID(pub)
		if err != nil {
			return nil, err
		}
		t.keys = append(t.keys, jose.JSONWebKey{Key: pub, KeyID: id, Algorithm: string(alg), Use: "sig"})
	}
	var err error
	t.signer, err = jose.NewSigner(jose.SigningKey{
		Algorithm: jose.SignatureAlgorithm(t.keys[0].Algorithm),
		Key:       jose.JSONWebKey{Key: c.Key, KeyID: t.keys[0].KeyID},
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
func (t *ServiceAccountTokens) Audiences() []string { return t.cfg.Audiences }

// Shortened is the time that a token gets that is asked for so many seconds.
func (t *ServiceAccountTokens) Shortened(seconds int64) int64 {
	if most := t.cfg.MaxSeconds; most > 0 {
		return min(seconds, most)
	}
	return seconds
}

// Issue signs a token for sa that ends after seconds or with bound, which may
// be nil or a Pod, Secret or Node; node is the pod's node, if known. A pod's
// token of the usual length for the API server itself is good for a year, since
// there are programs that read it only once; expires is what was asked for.
func (t *ServiceAccountTokens) Issue(sa *corev1.ServiceAccount, audiences []string, seconds int64, bound registry.Object, node *corev1.Node) (token string, expires time.Time, err error) {
	now := time.Now()
	expires = now.Add(time.Duration(seconds) * time.Second)
	if len(audiences) == 0 {
		audiences = t.cfg.Audiences
	}
	var c claims
	ends := expires
	if _, pod := bound.(*corev1.Pod); pod && !t.cfg.Exact && seconds == projectedSeconds && t.own(audiences) {
		ends = now.Add(extendedTime)
		c.Kubernetes.WarnAfter = new(expires.Unix())
	}
	c.Claims = jwt.Claims{
		Issuer: t.cfg.Issuers[0], Subject: serviceaccount.MakeUsername(sa.Namespace, sa.Name),
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(ends),
		ID: uuid.NewString(),
	}
	c.Audience = audiences
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

// projectedSeconds is what the ServiceAccount admission asks for pods.
const (
	projectedSeconds = 60*60 + 7
	extendedTime     = 365 * 24 * time.Hour
)

// own says that all of the audiences are this server's.
func (t *ServiceAccountTokens) own(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(t.cfg.Audiences, a) {
			return false
		}
	}
	return true
}

// algorithms accepted in a token's header.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384}

var (
	errBadToken = errors.New("invalid bearer token")
	errNoKeys   = errors.New("invalid signature, no keys found")
)

// AuthenticateToken checks signature, time, audience, and that what the token
// is bound to still lives.
func (t *ServiceAccountTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	sum := sha256.Sum256([]byte(token))
	t.mu.Lock()
	v := t.known[sum]
	t.mu.Unlock()
	if v == nil {
		if !t.ours(token) {
			return nil, false, nil
		}
		var err error
		if v, err = t.verify(token); err != nil {
			return nil, false, err
		}
		t.mu.Lock()
		if len(t.known) >= knownTokens {
			clear(t.known)
		}
		t.known[sum] = v
		t.mu.Unlock()
	}
	if v.legacy != nil {
		return t.legacy(ctx, token, v)
	}
	now := time.Now()
	if err := v.Claims.Validate(jwt.Expected{Time: now}); err != nil {
		return nil, false, timeError(err)
	}
	resp := v.resp
	if wanted, ok := authenticator.AudiencesFrom(ctx); ok {
		resp = &authenticator.Response{User: resp.User, Audiences: authenticator.Audiences(v.Audience).Intersect(wanted)}
		if len(resp.Audiences) == 0 {
			return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", v.Audience, wanted)
		}
	} else if len(resp.Audiences) == 0 {
		return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", v.Audience, t.cfg.Audiences)
	}
	if err := t.alive(ctx, &v.claims, now); err != nil {
		return nil, false, err
	}
	return resp, true, nil
}

func timeError(err error) error {
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return errors.New("service account token has expired")
	case errors.Is(err, jwt.ErrNotValidYet):
		return errors.New("service account token is not valid yet")
	case errors.Is(err, jwt.ErrIssuedInTheFuture):
		return errors.New("service account token is issued in the future")
	}
	return errors.New("service account token claims could not be validated due to unexpected validation error")
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
	return json.Unmarshal(payload, &c) == nil && (c.Issuer == LegacyIssuer || slices.Contains(t.cfg.Issuers, c.Issuer))
}

func (t *ServiceAccountTokens) verify(token string) (*verifiedToken, error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, errBadToken
	}
	failed := []error{}
	for _, key := range t.keys {
		if id := parsed.Headers[0].KeyID; id != "" && id != key.KeyID {
			continue
		}
		v := &verifiedToken{}
		if parsed.Headers[0].Algorithm != key.Algorithm {
			failed = append(failed, jose.ErrCryptoFailure)
			continue
		}
		if err := parsed.Claims(key.Key, &v.claims); err != nil {
			failed = append(failed, err)
			continue
		}
		if v.Issuer == LegacyIssuer {
			c := &legacyClaims{}
			if err := parsed.Claims(key.Key, c); err != nil {
				return nil, errBadToken
			}
			info := &serviceaccount.ServiceAccountInfo{Namespace: c.Namespace, Name: c.Account, UID: c.UID}
			v.legacy, v.resp = c, &authenticator.Response{User: authenticated(info.UserInfo())}
			return v, nil
		}
		k := &v.Kubernetes
		if k.Namespace == "" || !slices.Contains(t.cfg.Issuers, v.Issuer) || v.Subject != serviceaccount.MakeUsername(k.Namespace, k.ServiceAccount.Name) || v.Expiry == nil {
			return nil, errBadToken
		}
		v.resp = &authenticator.Response{
			User:      authenticated(v.info().UserInfo()),
			Audiences: authenticator.Audiences(v.Audience).Intersect(t.cfg.Audiences),
		}
		return v, nil
	}
	if len(failed) == 0 {
		return nil, errNoKeys
	}
	return nil, utilerrors.NewAggregate(failed)
}

// info is who the token says that its bearer is.
func (c *claims) info() *serviceaccount.ServiceAccountInfo {
	k := &c.Kubernetes
	info := &serviceaccount.ServiceAccountInfo{
		Namespace: k.Namespace, Name: k.ServiceAccount.Name, UID: k.ServiceAccount.UID,
	}
	if c.ID != "" {
		info.CredentialID = "JTI=" + c.ID
	}
	if k.Pod != nil {
		info.PodName, info.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Node != nil {
		info.NodeName, info.NodeUID = k.Node.Name, k.Node.UID
	}
	return info
}

var errInvalidated = errors.New("service account token has been invalidated")

// alive checks the objects that a token names: the account and what the token
// is bound to must exist, be the same as when it was issued, and not be on
// their way out for more than a minute.
func (t *ServiceAccountTokens) alive(ctx context.Context, c *claims, now time.Time) error {
	k := &c.Kubernetes
	sa, err := t.object(ctx, "serviceaccounts", k.Namespace, k.ServiceAccount.Name)
	switch {
	case errors.Is(err, watchcache.ErrNotFound):
		return apierrors.NewNotFound(corev1.Resource("serviceaccounts"), k.ServiceAccount.Name)
	case err != nil:
		return err
	case string(sa.GetUID()) != k.ServiceAccount.UID:
		return fmt.Errorf("service account UID (%s) does not match claim (%s)", sa.GetUID(), k.ServiceAccount.UID)
	case gone(sa, now):
		return fmt.Errorf("service account %s/%s has been deleted", k.Namespace, k.ServiceAccount.Name)
	}
	if err := t.bound(ctx, "secret", k.Namespace, k.Secret, now); err != nil {
		return err
	}
	if k.Pod == nil { // beside a pod the node is only told, as upstream does
		return t.bound(ctx, "node", "", k.Node, now)
	}
	return t.bound(ctx, "pod", k.Namespace, k.Pod, now)
}

// bound checks one object that a token lives and dies with; nil is none.
func (t *ServiceAccountTokens) bound(ctx context.Context, kind, namespace string, to *ref, now time.Time) error {
	if to == nil {
		return nil
	}
	o, err := t.object(ctx, kind+"s", namespace, to.Name)
	switch {
	case err != nil || gone(o, now):
		return errInvalidated
	case string(o.GetUID()) != to.UID:
		return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)", kind, o.GetUID(), kind, to.UID)
	}
	return nil
}

func gone(o registry.Object, now time.Time) bool {
	d := o.GetDeletionTimestamp()
	return d != nil && d.Add(jwt.DefaultLeeway).Before(now)
}

// object reads the cache and, since another server may have made the object a
// moment ago, then the store.
func (t *ServiceAccountTokens) object(ctx context.Context, resource, namespace, name string) (registry.Object, error) {
	if strings.Contains(name, "/") || strings.Contains(namespace, "/") {
		return nil, watchcache.ErrNotFound
	}
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	r := t.cache.Resource(corev1.SchemeGroupVersion.WithResource(resource))
	if o, ok := watchcache.Read[registry.Object](r, key); ok {
		return o, nil
	}
	rec, err := r.Get(ctx, key, "")
	if err != nil {
		return nil, err
	}
	return rec.Object()
}

// Discovery is the document at /.well-known/openid-configuration, which says
// that the keys are at jwksURI. There is none when the issuer is no name that
// others could look there by.
func (t *ServiceAccountTokens) Discovery(jwksURI string) ([]byte, error) {
	issuer := t.cfg.Issuers[0]
	u, err := url.Parse(issuer)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "https":
		return nil, fmt.Errorf("issuer URL must use https scheme, got: %s", issuer)
	case u.RawQuery != "":
		return nil, fmt.Errorf("issuer URL may not include a query, got: %s", issuer)
	case u.Fragment != "":
		return nil, fmt.Errorf("issuer URL may not include a fragment, got: %s", issuer)
	}
	algs := []string{}
	for _, k := range t.keys {
		if !slices.Contains(algs, k.Algorithm) {
			algs = append(algs, k.Algorithm)
		}
	}
	return json.Marshal(map[string]any{
		"issuer": t.cfg.Issuers[0], "jwks_uri": jwksURI, "response_types_supported": []string{"id_token"},
		"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": algs,
	})
}

// JWKS is the document at /openid/v1/jwks: the public keys.
func (t *ServiceAccountTokens) JWKS() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: t.keys})
}
