package sniff
