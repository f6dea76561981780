package alone

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"

	"knarr/controlplane/controllermanager/csr"
)

// signers are the files that approved certificate requests are signed with:
// one pair for all of the API's signers, or one for some of them each.
type signers struct {
	all pair
	own map[string]*pair // by signer
}

// A pair are files of a certificate and its key, and the flag that names them.
type pair struct{ flag, cert, key string }

// signerFlags are how flags call the signers.
var signerFlags = map[string]string{
	certificatesv1.KubeletServingSignerName:             "kubelet-serving",
	certificatesv1.KubeAPIServerClientKubeletSignerName: "kubelet-client",
	certificatesv1.KubeAPIServerClientSignerName:        "kube-apiserver-client",
	"kubernetes.io/legacy-unknown":                      "legacy-unknown",
}

func (s *signers) flags(f *pflag.FlagSet) {
	s.all.flags(f, "cluster-signing", "all of the API's signers")
	s.own = map[string]*pair{}
	for name, flag := range signerFlags {
		s.own[name] = &pair{}
		s.own[name].flags(f, "cluster-signing-"+flag, name)
	}
}

func (p *pair) flags(f *pflag.FlagSet, flag, who string) {
	p.flag = flag
	f.StringVar(&p.cert, flag+"-cert-file", "", "`file` of the certificate that signs for "+who)
	f.StringVar(&p.key, flag+"-key-file", "", "`file` of its key")
}

// authorities are what the flags name, each read once to see that it can be.
func (s *signers) authorities() (csr.Signers, error) {
	out := csr.Signers{}
	if s.all.cert != "" && s.all.key != "" {
		out = csr.All(s.all.read)
		if _, _, err := s.all.read(); err != nil {
			return nil, err
		}
	}
	for name, p := range s.own {
		if p.cert == "" && p.key == "" {
			continue
		}
		if s.all.cert != "" && s.all.key != "" {
			return nil, errors.New("cannot specify default and per controller certs at the same time")
		}
		if _, _, err := p.read(); err != nil {
			return nil, err
		}
		out[name] = p.read
	}
	return out, nil
}

// read reads the pair as it is now.
func (p *pair) read() (*x509.Certificate, crypto.Signer, error) {
	got, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, nil, fmt.Errorf("--%s-cert-file and --%s-key-file: %w", p.flag, p.flag, err)
	}
	key, ok := got.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("--%s-key-file: %T cannot sign", p.flag, got.PrivateKey)
	}
	return got.Leaf, key, nil
}
