package dns
