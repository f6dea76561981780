package registry

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	mostNameservers   = 3
	mostSearches      = 32
	mostSearchesChars = 2048
)

func (c *podCheck) checkDNS(at *field.Path) {
	d := c.spec.DNSConfig
	if c.spec.DNSPolicy == corev1.DNSNone {
		if d == nil {
			c.required(at, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
		if len(d.Nameservers) == 0 {
			c.required(at.Child("nameservers"), fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
	}
	if d == nil {
		return
	}
	if len(d.Nameservers) > mostNameservers {
		c.invalid(at.Child("nameservers"), d.Nameservers, fmt.Sprintf("must not have more than %v nameservers", mostNameservers))
	}
	for i, ip := range d.Nameservers {
		c.add(ipValue(ip, nil, at.Child("nameservers").Index(i)))
	}
	if len(d.Searches) > mostSearches {
		c.invalid(at.Child("searches"), d.Searches, fmt.Sprintf("must not have more than %v search paths", mostSearches))
	}
	if len(strings.Join(d.Searches, " ")) > mostSearchesChars {
		c.invalid(at.Child("searches"), d.Searches, fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", mostSearchesChars))
	}
	for i, s := range d.Searches {
		if s != "." {
			s = strings.TrimSuffix(s, ".")
			c.add(invalid(utilvalidation.IsDNS1123SubdomainWithUnderscore(s), s, at.Child("searches").Index(i)))
		}
	}
	for i, o := range d.Options {
		if o.Name == "" {
			c.required(at.Child("options").Index(i), "must not be empty")
		}
	}
}
