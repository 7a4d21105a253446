#!/bin/sh
# Stands for the work of the pages: one of many scrapers.
echo "scraping${TENURE_SLOT:+ as number $TENURE_SLOT}"
