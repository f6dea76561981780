package serviceaccounttoken

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
)

// A signer makes tokens without an audience and without an end.
type signer struct{ jose.Signer }

func newSigner(key crypto.Signer) (*signer, error) {
	var alg jose.SignatureAlgorithm
	switch k := key.Public().(type) {
	case *rsa.PublicKey:
		alg = jose.RS256
	case *ecdsa.PublicKey:
		alg = map[int]jose.SignatureAlgorithm{256: jose.ES256, 384: jose.ES384}[k.Curve.Params().BitSize]
	}
	if alg == "" {
		return nil, fmt.Errorf("%T is neither RSA nor ECDSA P-256 or P-384", key.Public())
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(der) // upstream's name of a key
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: base64.RawURLEncoding.EncodeToString(id[:])}}, nil)
	return &signer{s}, err
}

// claims have upstream's names.
type claims struct {
	jwt.Claims
	Account   string `json:"kubernetes.io/serviceaccount/service-account.name"`
	UID       string `json:"kubernetes.io/serviceaccount/service-account.uid"`
	Secret    string `json:"kubernetes.io/serviceaccount/secret.name"`
	Namespace string `json:"kubernetes.io/serviceaccount/namespace"`
}

func (s *signer) token(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return jwt.Signed(s.Signer).Claims(claims{
		Claims:  jwt.Claims{Issuer: "kubernetes/serviceaccount", Subject: "system:serviceaccount:" + account.Namespace + ":" + account.Name},
		Account: account.Name, UID: string(account.UID), Secret: secret.Name, Namespace: account.Namespace,
	}).Serialize()
}
