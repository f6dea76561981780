package ingress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"regexp/syntax"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/internal/references"
)

// Parsed keeps what takes long: certificates, patterns and what Ingresses that have not
// changed became, from one compilation to the next. What nothing uses is forgotten.
type Parsed struct {
	certificates map[string]*certificate
	pools        map[string]*pool
	patterns     map[string]*pattern
	users        map[string]*users
	known        *known
	round        int
	uses         []*use // since somebody has taken them
	left         int    // how much the last sweep has left
}

// A use is when something was used last.
type use struct{ round int }

type certificate struct {
	use
	cert *tls.Certificate
	err  error
}

type pool struct {
	use
	pool *x509.CertPool
	err  error
}

type pattern struct {
	use
	re  *regexp.Regexp
	err error
}

type users struct {
	use
	users map[string]string
	err   error
}

// NewParsed is empty.
func NewParsed() *Parsed {
	return &Parsed{certificates: map[string]*certificate{}, pools: map[string]*pool{}, patterns: map[string]*pattern{}, users: map[string]*users{}}
}

// Asks says whether what is known of Ingresses depends on an object.
func (p *Parsed) Asks(o references.Object) bool { return p.known != nil && p.known.asked[o] > 0 }

// A Use is something parsed that an outcome holds.
type Use = *use

// Uses are what was used since this was called last.
func (p *Parsed) Uses() []Use {
	all := p.uses
	p.uses = nil
	return all
}

func (p *Parsed) used(u *use) {
	u.round = p.round
	p.uses = append(p.uses, u)
}

// Sweep ends a compilation. Once there is much more than before, what neither it has used nor
// somebody still holds is forgotten.
func (p *Parsed) Sweep(held iter.Seq[Use]) {
	const some = 64
	if p.size() > 2*p.left+some {
		p.sweep(held)
	}
	p.round++
}

func (p *Parsed) size() int {
	return len(p.certificates) + len(p.pools) + len(p.patterns) + len(p.users)
}

func (p *Parsed) sweep(held iter.Seq[Use]) {
	if held != nil {
		for u := range held {
			u.round = p.round
		}
	}
	maps.DeleteFunc(p.certificates, func(_ string, v *certificate) bool { return v.round != p.round })
	maps.DeleteFunc(p.pools, func(_ string, v *pool) bool { return v.round != p.round })
	maps.DeleteFunc(p.patterns, func(_ string, v *pattern) bool { return v.round != p.round })
	maps.DeleteFunc(p.users, func(_ string, v *users) bool { return v.round != p.round })
	p.left = p.size()
}

// revision tells one state of a Secret from another.
func revision(s *corev1.Secret) string { return string(s.UID) + "/" + s.ResourceVersion }

// Certificate is that of a Secret of type kubernetes.io/tls.
func (p *Parsed) Certificate(s *corev1.Secret) (*tls.Certificate, error) {
	key := revision(s)
	c, ok := p.certificates[key]
	if !ok {
		c = &certificate{}
		c.cert, c.err = parseCertificate(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		p.certificates[key] = c
	}
	p.used(&c.use)
	return c.cert, c.err
}

func parseCertificate(cert, key []byte) (*tls.Certificate, error) {
	if len(cert) == 0 || len(key) == 0 {
		return nil, errors.New("it has no tls.crt or no tls.key")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, err
		}
	}
	return &pair, nil
}

// expired says whether a certificate is of another time.
func expired(c *tls.Certificate, now time.Time) error {
	switch {
	case now.After(c.Leaf.NotAfter):
		return fmt.Errorf("its certificate has expired on %s", c.Leaf.NotAfter.Format(time.RFC3339))
	case now.Before(c.Leaf.NotBefore):
		return fmt.Errorf("its certificate is valid from %s", c.Leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// Authorities are those in ca.crt of a Secret.
func (p *Parsed) Authorities(s *corev1.Secret) (*x509.CertPool, error) {
	key := revision(s)
	a, ok := p.pools[key]
	if !ok {
		a = &pool{pool: x509.NewCertPool()}
		if !a.pool.AppendCertsFromPEM(s.Data["ca.crt"]) {
			a.pool, a.err = nil, errors.New("its ca.crt holds no certificate")
		}
		p.pools[key] = a
	}
	p.used(&a.use)
	return a.pool, a.err
}

// maxProgram bounds a pattern by what matching costs: each byte of a path may be compared
// with each step of it. maxPattern bounds its text.
const maxProgram, maxPattern = 1000, 1024

// Pattern compiles an expression of a tenant.
func (p *Parsed) Pattern(text string) (*regexp.Regexp, error) {
	e, ok := p.patterns[text]
	if !ok {
		e = &pattern{}
		e.re, e.err = compile(text)
		p.patterns[text] = e
	}
	p.used(&e.use)
	return e.re, e.err
}

// Part compiles an expression of a tenant between what it becomes a part of. It must be
// one alone as well, so that it ends no bracket but its own.
func (p *Parsed) Part(before, text, after string) (*regexp.Regexp, error) {
	if _, err := p.Pattern(text); err != nil {
		return nil, err
	}
	return p.Pattern(before + text + after)
}

func compile(text string) (*regexp.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("the expression is longer than %d bytes", maxPattern)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, err
	}
	if len(program.Inst) > maxProgram {
		return nil, errors.New("the expression has too many steps")
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	// It becomes a part of longer ones, which an open quotation would swallow.
	if _, err := regexp.Compile("^(?:" + text + ")$"); err != nil {
		return nil, fmt.Errorf("the expression is not complete: %w", err)
	}
	return re, nil
}
