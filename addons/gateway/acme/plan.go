package acme

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// managedBy marks the Secrets that are made here: no other one is written to.
const managedBy, us = "app.kubernetes.io/managed-by", "knarr-acme"

var errNotOurs = errors.New("the Secret was not made by ACME here, and is left as it is; remove it, or leave the annotation out")

// due is when a certificate is to be ordered: at once if there is none, or none for all of
// the hosts, else after two thirds of its life, less up to a twentieth, which differs from
// Secret to Secret. Pure.
func due(w *Want, now time.Time) (time.Time, error) {
	if w.Have == nil {
		return now, nil
	}
	if w.Have.Labels[managedBy] != us {
		return time.Time{}, errNotOurs
	}
	leaf, err := leafOf(w.Have)
	if err != nil {
		return now, nil
	}
	for _, host := range w.Hosts {
		if leaf.VerifyHostname(host) != nil {
			return now, nil
		}
	}
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	h := fnv.New32a()
	h.Write([]byte(w.Secret.String()))
	early := life / 20 * time.Duration(h.Sum32()%1000) / 1000
	return leaf.NotBefore.Add(life/3*2 - early), nil
}

func leafOf(s *corev1.Secret) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(pair.Certificate[0])
}

// Orders of one hour: of all, and of one namespace.
const maxOrders, maxOrdersEach = 40, 15

// An orders is the orders of the last hour, the oldest first.
type orders []order

type order struct {
	at        time.Time
	namespace string
}

// next is when a namespace may order again. Pure.
func (o orders) next(namespace string, now time.Time) time.Time {
	var all, each orders
	for _, one := range o {
		if now.Sub(one.at) < time.Hour {
			all = append(all, one)
			if one.namespace == namespace {
				each = append(each, one)
			}
		}
	}
	at := now
	if n := len(all) - maxOrders; n >= 0 {
		at = all[n].at.Add(time.Hour)
	}
	if n := len(each) - maxOrdersEach; n >= 0 && each[n].at.Add(time.Hour).After(at) {
		at = each[n].at.Add(time.Hour)
	}
	return at
}

// after is how long to wait after so many failures in a row: 5 minutes, doubled each time,
// 12 hours at most, which is within what Let's Encrypt lets fail. Pure.
func after(failures int) time.Duration {
	const first, most = 5 * time.Minute, 12 * time.Hour
	d := first
	for range failures - 1 {
		if d *= 2; d > most {
			return most
		}
	}
	return d
}
